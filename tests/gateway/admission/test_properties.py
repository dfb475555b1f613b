"""Under any sequence of events limits hold, both stores agree, and the sums of holds and usage match."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.admission import Demand, Hold, LimitStore, Measure, MemoryStore, Quota, Scope
from gateway.admission.model import Committed, HoldRefusal, HoldRequest, Use
from gateway.admission.redis_store import RedisStore
from gateway.admission.store import FINISHED_MS
from gateway.admission.windows import MINUTE_MS, LimitWindow, bucket_at, still_counts
from gateway.tenancy import ScopeKind
from tests.support.limit_stores import NOON_MS, Clock, scope, tokens
from tests.support.servers import RedisServer

QUOTAS = (
    Quota(scope(Measure.REQUESTS_PER_MINUTE), 6),
    Quota(scope(Measure.TOKENS_PER_MINUTE, ScopeKind.KEY, "k"), 60),
    Quota(scope(Measure.TOKENS_PER_DAY), 150),
    Quota(scope(Measure.CONCURRENT, ScopeKind.MODEL, "m"), 3),
    Quota(scope(Measure.NANODOLLARS_PER_MONTH), 2**53 - 1),
    Quota(scope(Measure.CREDIT_NANODOLLARS), 400),
)
ONES = (Measure.REQUESTS_PER_MINUTE, Measure.CONCURRENT)

demands = st.lists(st.sampled_from(QUOTAS), min_size=1, unique=True).flatmap(
    lambda quotas: st.tuples(
        *(
            st.builds(Demand, st.just(quota), st.integers(0, 20), st.integers(0, 3))
            if quota.scope.measure not in ONES
            else st.just(Demand(quota, 1, 0))
            for quota in quotas
        )
    )
)
moves = st.one_of(
    st.tuples(st.just("hold"), st.integers(0, 30), demands, st.integers(0, 10), st.integers(0, 40)),
    st.tuples(st.just("settle"), st.integers(0, 30), st.integers(0, 100)),
    st.tuples(st.just("release"), st.integers(0, 30)),
    st.tuples(st.just("extend"), st.integers(0, 30)),
    # From nothing to over the end of the month, and often about a bucket's or a hold's length.
    st.tuples(
        st.just("wait"), st.sampled_from([0, 1, 4_999, 5_000, 29_999, 30_000, 60_000, 86_400_000, 32 * 86_400_000])
    ),
)
steps = st.lists(moves, max_size=40)
strays = st.tuples(st.just("stray"), st.integers(0, 30), st.integers(0, 30), st.integers(0, 100))
"""A request's usage is settled under an id that the store does not know, and a hold of that id follows."""
restores = st.tuples(st.just("restore"), st.sampled_from(QUOTAS[1:]), st.integers(0, 90_000), st.integers(0, 200))


@pytest.fixture(scope="module")
def runner(redis_server: RedisServer) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


async def apply(store: LimitStore, step: tuple, held: dict[str, Hold], now_ms: int) -> object:
    match step:
        case ("hold", id, demands, minimum, more):
            answer = await store.hold(HoldRequest(f"{id}", demands, minimum, minimum + more))
            if not isinstance(answer, Hold):
                return answer
            held.setdefault(f"{id}", answer)
            return (answer.at_ms, answer.granted_tokens, answer.bound_by)
        case ("settle", id, tokens) if f"{id}" in held:
            return await store.settle(held[f"{id}"], Use(1, tokens, tokens))
        case ("release", id) if f"{id}" in held:
            return await store.settle(held[f"{id}"], Use())
        case ("extend", id) if f"{id}" in held:
            return await store.extend(held[f"{id}"])
        case ("stray", id, stray, tokens) if f"{id}" in held:
            hold = replace(held[f"{id}"], request_id=f"stray {stray}")
            outcome = await store.settle(hold, Use(1, tokens, tokens))
            again = await store.hold(HoldRequest(hold.request_id, hold.demands, 0, 50))
            assert isinstance(again, Hold)
            return outcome, again.at_ms, again.granted_tokens, again.bound_by
        case ("restore", quota, age_s, amount):
            await store.restore([Committed(quota.scope, now_ms - age_s * 1000, amount)])
    return None


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(moves | restores | strays, max_size=40))
def test_both_stores_do_the_same(runner: asyncio.Runner, redis_server: RedisServer, steps: list[tuple]) -> None:
    """Step by step: the same grants, refusals, retry times, outcomes and counters. Redis' keys live by real time, so
    what is long past by the test's clock is left alone."""
    first_demands: dict[int, tuple[Demand, ...]] = {}
    steps = [
        (*step[:2], first_demands.setdefault(step[1], step[2]), *step[3:]) if step[0] == "hold" else step
        for step in steps
    ]

    async def run() -> None:
        clock = Clock()
        async with Redis.from_url(redis_server.url) as client:
            await client.flushall()
            stores = (MemoryStore(clock), RedisStore(client, clock))
            both_held: tuple[dict[str, Hold], dict[str, Hold]] = ({}, {})
            for step in steps:
                if step[0] == "wait":
                    clock.now_ms += step[1]
                    continue
                # Request ids repeat from zero before the store in memory forgets them.
                if step[0] != "restore":
                    step = (step[0], step[1] + 100 * ((clock.now_ms - NOON_MS) // (FINISHED_MS - 1)), *step[2:])
                answers = [
                    await apply(store, step, held, clock.now_ms) for store, held in zip(stores, both_held, strict=True)
                ]
                assert answers[0] == answers[1]
                states = [await store.usage(QUOTAS) for store in stores]
                assert states[0] == states[1]
                stores[0].check()

    runner.run(run())


@settings(max_examples=200)
@given(steps=steps)
def test_no_limit_is_passed_and_the_books_close(steps: list[tuple]) -> None:
    """Requests that use no more than they hold. A ledger of their own says what each window must come to."""

    async def run() -> None:
        clock = Clock()
        store = MemoryStore(clock)
        ledger: list[tuple[Hold, Use]] = []
        admitted: list[Hold] = []
        held: dict[str, Hold] = {}
        serial = 0
        for step in steps:
            match step:
                case ("wait", ms):
                    clock.now_ms += ms
                    # Late use of a hold that has expired is the one thing that can pass a limit.
                    held = {id: hold for id, hold in held.items() if await store.extend(hold)}
                case ("hold", id, demands, minimum, more) if f"{id}" not in held:
                    serial += 1
                    answer = await store.hold(HoldRequest(f"{serial}", demands, minimum, minimum + more))
                    if isinstance(answer, Hold):
                        assert minimum <= answer.granted_tokens <= minimum + more
                        assert (answer.bound_by is None) == (answer.granted_tokens == minimum + more)
                        held[f"{id}"] = answer
                        admitted.append(answer)
                case ("settle", id, tokens) if f"{id}" in held:
                    hold = held.pop(f"{id}")
                    most = min(
                        (
                            each.amount(hold.granted_tokens)
                            for each in hold.demands
                            if each.quota.scope.measure not in ONES
                        ),
                        default=0,
                    )
                    use = Use(1, min(tokens, most), min(tokens, most))
                    assert not (await store.settle(hold, use)).exceeded
                    ledger.append((hold, use))
            for state in await store.usage(QUOTAS):
                assert state.used <= state.quota.limit
        for hold in held.values():
            await store.settle(hold, Use())
        for state in await store.usage(QUOTAS):
            assert state.used == booked(ledger, admitted, state.quota.scope, clock.now_ms)

    asyncio.run(run())


def booked(ledger: list[tuple[Hold, Use]], admitted: list[Hold], scope: Scope, now_ms: int) -> int:
    """Usage in the buckets of a scope that still count."""
    window = scope.measure.window

    def counts(hold: Hold) -> bool:
        bucket = bucket_at(window, hold.at_ms)
        last_ms = max(each.at_ms for each in admitted if takes(each, scope) and bucket_at(window, each.at_ms) == bucket)
        return still_counts(window, last_ms if window is LimitWindow.MINUTE else bucket, now_ms)

    return sum(use.of(scope.measure) for hold, use in ledger if takes(hold, scope) and counts(hold))


def takes(hold: Hold, scope: Scope) -> bool:
    return any(each.quota.scope == scope and each.amount(hold.granted_tokens) for each in hold.demands)


@settings(max_examples=200)
@given(
    waits_ms=st.lists(st.one_of(st.integers(0, 20_000), st.sampled_from([4_999, 5_000, 55_000, 59_999, 60_000]))),
    limit=st.integers(1, 5),
)
def test_a_limit_per_minute_holds_in_any_60_s_and_asks_for_no_longer_wait(waits_ms: list[int], limit: int) -> None:
    """A client that returns after its Retry-After is admitted, unless another was quicker."""
    demand = Demand(Quota(scope(Measure.REQUESTS_PER_MINUTE), limit), 1, 0)

    async def run() -> None:
        clock = Clock()
        store = MemoryStore(clock)
        admitted_ms: list[int] = []
        for n, wait_ms in enumerate(waits_ms):
            clock.now_ms += wait_ms
            answer = await store.hold(HoldRequest(f"{n}", (demand,), 0, 0))
            if isinstance(answer, HoldRefusal):
                assert answer.retry_after_ms is not None
                assert 0 < answer.retry_after_ms <= MINUTE_MS
                assert all(state.reset_ms <= MINUTE_MS for state in answer.states)
                clock.now_ms += answer.retry_after_ms
                answer = await store.hold(HoldRequest(f"{n} again", (demand,), 0, 0))
            assert isinstance(answer, Hold)
            await store.settle(answer, Use(1))
            admitted_ms.append(clock.now_ms)
            assert sum(at_ms > clock.now_ms - MINUTE_MS for at_ms in admitted_ms) <= limit

    asyncio.run(run())


async def test_a_thousand_at_once_use_all_of_a_quota_and_not_a_token_more(store: LimitStore) -> None:
    """Each wants up to 100 tokens, uses some of what it was granted, and comes again."""
    limit = 20_000
    demand = tokens(limit, measure=Measure.TOKENS_PER_DAY)
    chance = random.Random(7)
    connections = asyncio.Semaphore(32)
    used = 0

    async def request(n: int) -> None:
        nonlocal used
        attempt = 0
        while used < 0.98 * limit and attempt < 20:
            attempt += 1
            async with connections:
                answer = await store.hold(HoldRequest(f"{n} {attempt}", (demand,), 1, 100))
            await asyncio.sleep(0)
            if isinstance(answer, Hold):
                part = chance.randint(1, answer.granted_tokens)
                used += part
                async with connections:
                    await store.settle(answer, Use(1, part))

    await asyncio.gather(*(request(n) for n in range(1_000)))
    (state,) = await store.usage([demand.quota])
    assert state.used == used
    assert 0.98 * limit <= used <= limit
