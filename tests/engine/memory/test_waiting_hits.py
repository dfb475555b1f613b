"""Hits of a request that waits, in a model with window groups: they cost little from step to step, and stay true."""

from hypothesis import given
from hypothesis import strategies as st

from engine.config import BLOCK_TOKENS
from engine.memory import BlockPool, KVCacheManager
from engine.memory.window_groups import group_hash
from engine.request import Request
from engine.simulation import make_request
from tests.engine.memory.support import admit


class CountingPool(BlockPool):
    """Counts the hashes that are looked up, and the blocks whose references are summarised."""

    looked_at = 0

    def match(self, hashes: list[bytes]) -> list[int]:  # type: ignore[override]
        self.looked_at += len(hashes)
        return super().match(hashes)

    def is_cached(self, block_hash: bytes) -> bool:
        self.looked_at += 1
        return super().is_cached(block_hash)

    def survey(self, blocks):  # type: ignore[no-untyped-def]
        self.looked_at += len(blocks)
        return super().survey(blocks)


def computed(cache: KVCacheManager, tokens: list[int]) -> Request:
    """A request that computed its tokens in one step, and ended."""
    request = make_request("first", tokens)
    assert admit(cache, request)
    request.scheduled = request.computed = 0
    cache.commit(request, len(tokens) // BLOCK_TOKENS * BLOCK_TOKENS)
    cache.release(request)
    return request


def lose(pool: BlockPool, block_hash: bytes) -> None:
    for block in pool.match([block_hash]):
        pool.acquire([block])
        pool.forget([block])
        pool.release([block])


def test_hits_are_not_looked_up_again_while_their_blocks_stay_as_they_are() -> None:
    """Whether all groups have the whole prefix, or one of them lacks a block."""
    for lost in (None, 190):
        pool = CountingPool(2000)
        cache = KVCacheManager(pool, windows=(None, 1000, 100))
        tokens = [1] * (200 * BLOCK_TOKENS + 1)
        first = computed(cache, tokens)
        if lost is not None:
            lose(pool, group_hash(first.block_hashes[lost], 2))
        waiting = make_request("waiting", tokens)
        expected = list(cache.match(waiting))
        for step in range(5):
            assert admit(cache, make_request(f"other {step}", [2 + step] * 40))
            pool.looked_at = 0
            assert cache.match(waiting) == expected
            assert pool.looked_at <= 2


def test_a_window_that_is_computed_again_makes_the_hit_longer() -> None:
    pool = BlockPool(500)
    cache = KVCacheManager(pool, windows=(40,))
    tokens = [1] * (20 * BLOCK_TOKENS + 1)
    first = computed(cache, tokens)
    for block_hash in first.block_hashes:
        lose(pool, group_hash(block_hash, 1))
    waiting = make_request("waiting", tokens)
    assert not cache.match(waiting)
    computed(cache, tokens)
    assert len(cache.match(waiting)) == 20


EVENTS = st.lists(st.tuples(st.sampled_from(["lose", "use", "end", "grow"]), st.integers(0, 3), st.integers(0, 11)))


@given(windows=st.lists(st.one_of(st.none(), st.integers(1, 70)), min_size=1, max_size=3), events=EVENTS)
def test_kept_hits_equal_those_of_a_request_that_has_just_come(
    windows: list[int | None], events: list[tuple[str, int, int]]
) -> None:
    pool = BlockPool(300)
    cache = KVCacheManager(pool, windows=windows)
    tokens = [1] * (12 * BLOCK_TOKENS + 1)
    hashes = computed(cache, tokens).block_hashes
    waiting, users = make_request("waiting", tokens), []
    cache.hits(waiting)
    for number, (event, group, index) in enumerate(events):
        match event:
            case "lose":
                lose(pool, hashes[index] if not group else group_hash(hashes[index], group))
            case "use":
                user = make_request(f"user {number}", tokens[: index * BLOCK_TOKENS + 2])
                if admit(cache, user):
                    users.append(user)
            case "end" if users:
                cache.release(users.pop(index % len(users)))
            case "grow":
                admit(cache, make_request(f"other {number}", [5 + number] * (index * BLOCK_TOKENS + 1)))
        fresh = make_request("fresh", tokens)
        kept, new = cache.hits(waiting), cache.hits(fresh)
        assert (kept.blocks, kept.windows, kept.survey) == (new.blocks, new.windows, new.survey)
    assert not cache.shortage(waiting, cache.demand(waiting)) or not admit(cache, waiting)
