"""The tokens of waiting prompts in a snapshot, less those that the prefix cache has at that moment."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import BLOCK_TOKENS
from engine.request import Request, SamplingParams
from engine.scheduling import Scheduler
from engine.scheduling.cost import H200_LLAMA_8B, StepCostModel
from engine.scheduling.scheduler import LOOKED_UP
from engine.scheduling.wait import predict_first_token_ns
from engine.simulation import make_request
from tests.engine.scheduling.support import CLASSES, make_scheduler, step

SHORT = SamplingParams(max_tokens=3, ignore_eos=True)
COST = StepCostModel.from_coefficients(H200_LLAMA_8B)
PREFIXES = [range(1000 * family, 1000 * family + 160) for family in range(3)]


def request(number: int, family: int, shared: int, own: int, rank: int = 1) -> Request:
    """`shared` tokens of a family's prefix, and `own` tokens of its own."""
    tokens = [*PREFIXES[family][:shared], *range(100_000 + 1000 * number, 100_000 + 1000 * number + own)]
    return make_request(f"r{number}", tokens, arrival=number, params=SHORT, service_class=CLASSES[rank])


def cached_of(scheduler: Scheduler, waiting: Sequence[Request]) -> int:
    """By the definition: the leading blocks without the last token whose hashes are in the pool, with no memory of
    former lookups."""
    pool, found = scheduler._cache._pool, 0
    for each in waiting:
        for block_hash in each.block_hashes[: (len(each.tokens) - 1) // BLOCK_TOKENS]:
            if not pool.is_cached(block_hash):
                break
            found += BLOCK_TOKENS
    return found


_arrivals = st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 160), st.integers(1, 40), st.integers(0, 1))
_events = st.lists(st.one_of(_arrivals, st.just(("step",)), st.just(("abort",))), max_size=60)


@settings(max_examples=60, deadline=None)
@given(_events, st.sampled_from([24, 64]))
def test_it_is_a_function_of_the_queue_and_the_cache_as_they_are(events: list[tuple], num_blocks: int) -> None:
    scheduler = make_scheduler(num_blocks, max_running=2)
    alive: list[Request] = []
    for number, (kind, *fields) in enumerate(events):
        if kind == "add":
            family, shared, own, rank = fields
            alive.append(request(number, family, shared, own, rank))
            scheduler.add(alive[-1])
        elif kind == "abort" and alive:
            scheduler.abort(alive[len(alive) // 2].id)
        elif kind == "step" and scheduler.has_work:
            step(scheduler)
        alive = [each for each in alive if scheduler.waits(each.id) or each in scheduler.running]
        for rank, load in enumerate(scheduler.snapshot().classes):
            waiting = list(scheduler._requests.waiting[rank])[:LOOKED_UP]
            assert load.waiting_cached_tokens == cached_of(scheduler, waiting)
            assert load.waiting_cached_tokens <= load.waiting_tokens - load.waiting_requests
        assert scheduler.snapshot() == scheduler.snapshot(), "a lookup changes nothing"


def test_the_same_prompt_waits_less_once_it_is_cached() -> None:
    """Eight requests wait whose prompts the first one computes: the report said that each has all of it to compute."""
    scheduler = make_scheduler(200, max_running=1)
    for number in range(9):
        scheduler.add(request(number, 0, 160, 4))
    before = scheduler.snapshot().classes[1]
    assert before.waiting_cached_tokens == 0
    for _ in range(4):
        step(scheduler)
    waiting = scheduler.snapshot().classes[1]
    assert (waiting.waiting_requests, waiting.waiting_tokens) == (8, 8 * 164)
    assert waiting.waiting_cached_tokens == 8 * 160
    assert waiting.uncached_tokens == 8 * 4
    snapshot = scheduler.snapshot()
    blind = replace(snapshot, classes=(snapshot.classes[0], replace(waiting, waiting_cached_tokens=0)))
    assert predict_first_token_ns(snapshot, 1, 164, COST, 160) < predict_first_token_ns(blind, 1, 164, COST, 160)


def test_what_a_client_knows_of_its_own_requests_is_not_counted_twice() -> None:
    scheduler = make_scheduler(200, max_running=1)
    for number in range(4):
        scheduler.add(request(number, 0, 160, 4))
    for _ in range(4):
        step(scheduler)
    snapshot = scheduler.snapshot()
    assert snapshot.classes[1].waiting_cached_tokens == 3 * 160
    assert snapshot.without_cached([0, 2 * 160]) == snapshot
    assert snapshot.without_cached([0, 5 * 160]).classes[1].waiting_cached_tokens == 5 * 160
    rest = snapshot.without_waiting(1, requests=2, tokens=2 * 164, pairs=0).classes[1]
    assert (rest.waiting_requests, rest.waiting_tokens, rest.waiting_cached_tokens) == (1, 164, 160)
