"""The KV cache on requests, one test for each thing it promises."""

import pytest

from engine.config import BLOCK_TOKENS
from engine.memory import BlockCopy, BlockPool, KVCacheManager
from engine.memory.kv_cache import blocks_for
from engine.request import Request, SamplingParams
from engine.simulation import make_request
from tests.engine.memory.support import admit, fork

PROMPT = list(range(100, 140))
"""40 tokens: two full blocks and half of a third."""


def make_cache(num_blocks: int = 16, *, prefix_cache: bool = True) -> tuple[KVCacheManager, BlockPool]:
    pool = BlockPool(num_blocks)
    return KVCacheManager(pool, prefix_cache=prefix_cache), pool


def computed_request(cache: KVCacheManager, name: str, tokens: list[int], salt: bytes = b"") -> Request:
    """A request whose tokens are all computed."""
    request = make_request(name, tokens, salt=salt)
    assert admit(cache, request)
    cache.commit(request, len(tokens) - request.computed)
    return request


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


def test_admission_gives_the_blocks_of_all_tokens_at_once() -> None:
    cache, pool = make_cache()
    request = make_request("a", PROMPT)
    assert admit(cache, request)
    assert (len(request.block_table), request.computed) == (3, 0)
    assert pool.free_blocks == 13
    cache.check([request])


@pytest.mark.parametrize(("num_blocks", "keep_free", "admitted"), [(2, 0, False), (3, 0, True), (4, 2, False)])
def test_admission_is_all_or_nothing(num_blocks: int, keep_free: int, admitted: bool) -> None:
    cache, pool = make_cache(num_blocks)
    request = make_request("a", PROMPT)
    assert admit(cache, request, keep_free=keep_free) is admitted
    assert pool.free_blocks == num_blocks - (3 if admitted else 0)
    cache.check([request])


def test_a_prefix_hit_shares_blocks_and_spares_their_computation() -> None:
    cache, pool = make_cache()
    first = computed_request(cache, "first", PROMPT)
    second = make_request("second", [*PROMPT[:32], *range(20)])
    assert admit(cache, second)
    assert second.block_table[:2] == first.block_table[:2]
    assert (second.computed, second.cached_tokens) == (32, 32)
    assert pool.references(first.block_table[0]) == 2
    cache.check([first, second])


def test_a_hit_outlives_its_request() -> None:
    cache, _ = make_cache()
    cache.release(computed_request(cache, "first", PROMPT))
    second = make_request("second", PROMPT)
    assert admit(cache, second)
    assert second.computed == 32
    cache.check([second])


@pytest.mark.parametrize(("tokens", "hit"), [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32)])
def test_a_hit_leaves_a_token_to_compute(tokens: int, hit: int) -> None:
    """nano-vllm 144: a prompt that is all cached gave a row of no tokens."""
    cache, _ = make_cache()
    prompt = list(range(tokens))
    cache.release(computed_request(cache, "first", prompt))
    second = make_request("second", prompt)
    assert admit(cache, second)
    assert second.computed == hit < tokens
    cache.check([second])


def test_a_hit_that_was_preempted_counts_the_customers_hit_once() -> None:
    """nano-vllm 211, 233: the count of cached tokens of an earlier admission indexed a later one's blocks."""
    cache, _ = make_cache()
    request = computed_request(cache, "a", PROMPT)
    request.tokens.append(7)
    cache.release(request)
    request.admissions += 1
    assert (request.computed, request.block_table) == (0, [])
    assert admit(cache, request)
    assert (request.computed, request.cached_tokens) == (32, 0)
    cache.check([request])


def test_only_full_blocks_are_published_and_each_once() -> None:
    cache, pool = make_cache()
    request = make_request("a", PROMPT)
    assert admit(cache, request)
    published = []
    for _ in range(4):
        cache.commit(request, 10)
        published.append(pool.cached_blocks)
        cache.check([request])
    assert published == [0, 1, 1, 2]
    assert pool.hash_of(request.block_table[2]) is None


def test_hashes_are_computed_once_and_only_as_far_as_needed() -> None:
    cache, _ = make_cache(64)
    request = make_request("long", range(640))
    assert cache.match(request) == []
    assert len(request.block_hashes) == 1, "the first miss ends the hashing"
    cache.release(computed_request(cache, "other", list(range(640))))
    known = request.block_hashes[0]
    assert len(cache.match(request)) == 39
    assert request.block_hashes[0] is known


def test_tenants_do_not_share() -> None:
    cache, _ = make_cache()
    computed_request(cache, "a", PROMPT, salt=b"tenant-a")
    assert cache.match(make_request("b", PROMPT, salt=b"tenant-b")) == []
    assert cache.match(make_request("c", PROMPT)) == []
    assert len(cache.match(make_request("d", PROMPT, salt=b"tenant-a"))) == 2


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    cache, _ = make_cache()
    computed_request(cache, "a", PROMPT)
    assert cache.match(make_request("b", PROMPT, params=SamplingParams(prompt_logprobs=0))) == []


def test_without_a_prefix_cache_nothing_is_published_or_hashed() -> None:
    cache, pool = make_cache(prefix_cache=False)
    request = computed_request(cache, "a", PROMPT)
    assert pool.cached_blocks == 0
    assert request.block_hashes == []
    assert cache.match(make_request("b", PROMPT)) == []


def test_hits_are_pinned_before_anything_is_allocated() -> None:
    """vLLM 37164: a block was looked up, then given away, then read as a hit."""
    cache, pool = make_cache(3)
    cache.release(computed_request(cache, "a", PROMPT))
    request = make_request("b", [*PROMPT[:32], 1, 2])
    assert admit(cache, request)
    assert len(set(request.block_table)) == 3
    assert pool.free_blocks == 0
    cache.check([request])


def test_an_idle_hit_costs_a_free_block() -> None:
    """It leaves the free list, so it counts against what the running ones are promised."""
    cache, _ = make_cache(3)
    cache.release(computed_request(cache, "a", PROMPT))
    assert not admit(cache, make_request("b", PROMPT), keep_free=1)
    assert admit(cache, make_request("c", PROMPT), keep_free=0)


def test_a_demand_holds_while_blocks_are_released() -> None:
    """As when the planner preempts requests for one whose demand it has checked, some of which share its hits."""
    cache, pool = make_cache(6)
    first = computed_request(cache, "a", PROMPT)
    other = computed_request(cache, "b", PROMPT[::-1])
    request = make_request("c", PROMPT)
    demand = cache.demand(request)
    assert (cache.shortage(request, demand), demand.num_new_blocks) == (1, 1)
    hits = first.block_table[:2]
    cache.release(first)
    cache.release(other)
    cache.admit(request, demand)
    assert request.block_table[:2] == hits
    assert pool.free_blocks == 3
    cache.check([request])


def test_a_demand_that_cannot_be_met_or_is_stale_is_found() -> None:
    cache, pool = make_cache(4)
    cache.release(computed_request(cache, "a", PROMPT))
    request = make_request("b", PROMPT)
    demand = cache.demand(request)
    blocks = pool.allocate(2)
    with pytest.raises(AssertionError, match="not enough blocks"):
        cache.admit(request, demand)
    pool.release([*blocks, *pool.allocate(2)])
    with pytest.raises(AssertionError, match="stale"):
        cache.admit(request, demand)
    assert admit(cache, request)


def test_a_shared_hit_costs_nothing() -> None:
    cache, _ = make_cache(5)
    computed_request(cache, "a", PROMPT)
    assert admit(cache, make_request("b", PROMPT), keep_free=1)


def test_growth_is_all_or_nothing() -> None:
    cache, pool = make_cache(4)
    request = computed_request(cache, "a", PROMPT)
    assert cache.grow(request, 48)
    assert len(request.block_table) == 3, "there was room"
    assert cache.blocks_needed(request, 81) == 3
    assert not cache.grow(request, 81)
    assert (len(request.block_table), pool.free_blocks) == (3, 1)
    assert cache.grow(request, 49)
    assert (len(request.block_table), pool.free_blocks) == (4, 0)
    cache.check([request])


def test_trim_gives_back_what_rejected_drafts_had_grown() -> None:
    cache, pool = make_cache()
    request = computed_request(cache, "a", PROMPT)
    assert cache.grow(request, 80)
    cache.trim(request)
    assert len(request.block_table) == 3
    assert pool.free_blocks == 13
    cache.trim(request)
    cache.check([request])


def test_release_frees_all_and_twice_does_no_harm() -> None:
    cache, pool = make_cache()
    request = computed_request(cache, "a", PROMPT)
    cache.release(request)
    cache.release(request)
    assert pool.free_blocks == 16
    cache.check([request])


def test_what_is_not_to_be_trusted_is_not_found_again() -> None:
    cache, pool = make_cache()
    first = computed_request(cache, "a", PROMPT)
    second = make_request("b", PROMPT)
    assert admit(cache, second)
    cache.release(first, forget=True)
    assert cache.match(make_request("c", PROMPT)) == []
    assert pool.references(second.block_table[0]) == 1
    cache.check([second])


@pytest.mark.parametrize(("prompt_tokens", "shared", "copies"), [(1, 0, 0), (16, 0, 1), (17, 1, 0), (40, 2, 1)])
def test_a_fork_shares_full_blocks_and_copies_the_one_it_writes(prompt_tokens: int, shared: int, copies: int) -> None:
    """It computes the last token of the prompt itself, at position 16 in a block of its own."""
    cache, pool = make_cache()
    parent = computed_request(cache, "parent", PROMPT[:prompt_tokens])
    child = make_request("child", PROMPT[:prompt_tokens])
    copied = fork(cache, parent, child)
    assert copied is not None
    assert child.block_table[:shared] == parent.block_table[:shared]
    assert child.computed == child.cached_tokens == prompt_tokens - 1
    assert copied == [BlockCopy(parent.block_table[shared], child.block_table[shared])][:copies]
    assert set(child.block_table[shared:]).isdisjoint(parent.block_table)
    assert pool.free_blocks == 16 - len(parent.block_table) - 1
    cache.check([parent, child])
    cache.commit(child, 1)
    cache.check([parent, child])
    cache.release(parent)
    cache.release(child)
    assert pool.free_blocks == 16


def test_a_fork_that_does_not_fit_changes_nothing() -> None:
    cache, pool = make_cache(4)
    parent = computed_request(cache, "parent", PROMPT)
    child = make_request("child", PROMPT)
    assert fork(cache, parent, child, keep_free=1) is None
    assert (child.block_table, child.computed, pool.free_blocks) == ([], 0, 1)
    assert fork(cache, parent, child) is not None
    cache.check([parent, child])


def test_a_fork_has_the_prompt_of_its_parent() -> None:
    cache, _ = make_cache()
    parent = computed_request(cache, "parent", PROMPT)
    with pytest.raises(AssertionError, match="differ in their prompt"):
        fork(cache, parent, make_request("child", PROMPT[::-1]))
    with pytest.raises(AssertionError, match="different caches"):
        fork(cache, parent, make_request("child", PROMPT, salt=b"tenant"))


def test_equal_prompts_computed_side_by_side_do_not_disturb_each_other() -> None:
    """nano-vllm 208: two requests of one step with the same prompt."""
    cache, pool = make_cache()
    first, second = make_request("a", PROMPT), make_request("b", PROMPT)
    assert admit(cache, first)
    assert admit(cache, second)
    for request in (first, second):
        cache.commit(request, len(PROMPT))
        cache.check([first, second])
    assert set(first.block_table).isdisjoint(second.block_table)
    assert pool.cached_blocks == 2
    cache.release(first)
    cache.check([second])


def test_check_finds_a_block_that_would_be_written_while_shared() -> None:
    cache, _ = make_cache()
    first = computed_request(cache, "a", PROMPT)
    second = make_request("b", PROMPT)
    assert admit(cache, second)
    second.computed = BLOCK_TOKENS
    with pytest.raises(AssertionError, match="would write to shared block"):
        cache.check([first, second])


def test_check_finds_a_lost_reference() -> None:
    cache, pool = make_cache()
    request = computed_request(cache, "a", PROMPT)
    pool.acquire(request.block_table[:1])
    with pytest.raises(AssertionError, match="2 references, 1 hold"):
        cache.check([request])


def test_check_finds_anothers_block_in_a_table() -> None:
    cache, pool = make_cache()
    first = computed_request(cache, "a", PROMPT)
    second = computed_request(cache, "b", PROMPT[::-1])
    pool.acquire(first.block_table[:1])
    pool.release(second.block_table[:1])
    second.block_table[0] = first.block_table[0]
    with pytest.raises(AssertionError, match="b reads another's block"):
        cache.check([first, second])


def test_check_finds_computed_tokens_without_a_block() -> None:
    cache, _ = make_cache()
    request = computed_request(cache, "a", PROMPT)
    request.tokens += range(20)
    request.computed = 50
    with pytest.raises(AssertionError, match="without a block"):
        cache.check([request])
