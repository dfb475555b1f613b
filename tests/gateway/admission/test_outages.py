"""Admission while the shared store is slow or down, in virtual time over a store in this process."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.admission import Demand, Hold, Measure, Quota, SettleOutcome, StoreAway
from gateway.admission.breaker import AWAY_S, PATIENCE_S, PROBE_S, SILENT_S
from gateway.admission.deadlines import CEILING_S
from gateway.admission.local_share import MERGE_S, LocalShare
from gateway.admission.model import Committed, HoldRefusal, HoldRequest, Use
from gateway.admission.store import HOLD_TTL_MS
from tests.gateway.admission.flaky_store import FlakyStore
from tests.support.limit_stores import each, hold, scope, tokens
from tests.support.virtual_time import in_virtual_time, virtual_loop

TPD = Measure.TOKENS_PER_DAY
MONEY = Measure.NANODOLLARS_PER_MONTH
CREDIT = Measure.CREDIT_NANODOLLARS
BACK_S = AWAY_S + PROBE_S + CEILING_S + MERGE_S
"""After so long without faults a replica has noticed, and merged."""


def with_store(act: Callable[[LocalShare, FlakyStore], Awaitable[None]]) -> None:
    async def run() -> None:
        shared = FlakyStore()
        store = LocalShare(shared, 0.2)
        await act(store, shared)
        await store.aclose()

    in_virtual_time(run())


async def used(shared: FlakyStore, demand: Demand) -> int:
    return (await shared.store.usage([demand.quota]))[0].used


@pytest.mark.parametrize("requests", [200, 1_000])
def test_a_stalling_process_uses_a_days_tokens_to_the_last_and_no_more(requests: int) -> None:
    """The process stands still again and again, longer than any deadline; the store answers all the time."""

    async def act(store: LocalShare, shared: FlakyStore) -> None:
        loop = virtual_loop()

        async def stall() -> None:
            while True:
                await asyncio.sleep(0.0004)
                loop.stall(0.08)

        stalling = asyncio.create_task(stall())
        demand = tokens(2_000, measure=TPD)
        answers = await asyncio.gather(*(store.hold(HoldRequest(f"{n}", (demand,), 1, 20)) for n in range(requests)))
        stalling.cancel()
        assert sum(answer.granted_tokens for answer in answers if isinstance(answer, Hold)) == 2_000
        assert (store.counts()["degraded"], store.counts()["breaker_opened"]) == (0, 0)
        assert shared.arrived["hold"] == requests, "none was asked twice"

    with_store(act)


@pytest.mark.parametrize("measure", [TPD, MONEY, CREDIT])
def test_what_counts_for_long_is_not_admitted_before_the_store_is_surely_away(measure: Measure) -> None:
    async def act(store: LocalShare, shared: FlakyStore) -> None:
        loop = virtual_loop()
        demands = each(Measure.REQUESTS_PER_MINUTE, 100), tokens(1_000, measure=measure)
        await hold(store, "before", *demands, desired=10)
        shared.silent = True
        started = loop.time()
        while loop.time() - started < AWAY_S - SILENT_S - PATIENCE_S:
            asked_at = loop.time()
            with pytest.raises(StoreAway) as refused:
                await store.hold(HoldRequest(f"at {asked_at}", demands, 1, 100))
            assert refused.value.scope == demands[1].quota.scope
            assert loop.time() - asked_at <= SILENT_S + PATIENCE_S + 0.1
        # Minutes make up for what they are overspent.
        assert (await hold(store, "short", demands[0])).degraded
        await asyncio.sleep(AWAY_S)
        asked_at = loop.time()
        if measure is CREDIT:
            with pytest.raises(StoreAway):
                await store.hold(HoldRequest("away", demands, 1, 1_000))
        else:
            answer = await hold(store, "away", *demands, desired=1_000)
            assert (answer.granted_tokens, answer.degraded) == (200, True)
        assert loop.time() == asked_at, "nothing waits for a store that is away"
        shared.silent = False
        await asyncio.sleep(BACK_S)
        assert await used(shared, demands[1]) == 10, "what was refused holds nothing"

    with_store(act)


@pytest.mark.parametrize("fault", ["silent", "drops_answers", "refuses"])
def test_a_short_outage_is_waited_for(fault: str) -> None:
    async def act(store: LocalShare, shared: FlakyStore) -> None:
        demands = tokens(1_000, measure=TPD), tokens(1_000, measure=CREDIT)
        setattr(shared, fault, True)
        waiting = [asyncio.create_task(hold(store, f"{n}", *demands, desired=10)) for n in range(30)]
        await asyncio.sleep(SILENT_S + 0.3)
        assert store.counts()["breaker_open"]
        setattr(shared, fault, False)
        held = await asyncio.gather(*waiting)
        assert not any(taken.degraded for taken in held)
        assert [await used(shared, demand) for demand in demands] == [300, 300], "what was asked twice holds once"

    with_store(act)


def test_a_hold_that_nobody_heard_of_is_released() -> None:
    """It took place, its answers were lost, and its request was refused: nothing of it may stay."""

    async def act(store: LocalShare, shared: FlakyStore) -> None:
        demands = each(Measure.CONCURRENT, 1), tokens(1_000, measure=CREDIT)
        shared.drops_answers = True
        with pytest.raises(StoreAway):
            await store.hold(HoldRequest("a", demands, 1, 100))
        assert await used(shared, demands[0]) == 1
        shared.drops_answers = False
        await asyncio.sleep(BACK_S)
        assert [await used(shared, demand) for demand in demands] == [0, 0]
        assert virtual_loop().time() * 1000 < HOLD_TTL_MS, "it did not expire"

    with_store(act)


def test_a_lost_hold_is_released_where_the_share_refuses() -> None:
    async def act(store: LocalShare, shared: FlakyStore) -> None:
        demand = tokens(100)
        shared.drops_answers = True
        assert not isinstance(await store.hold(HoldRequest("a", (demand,), 50, 50)), Hold)
        assert await used(shared, demand) == 50
        shared.drops_answers = False
        await asyncio.sleep(BACK_S)
        assert await used(shared, demand) == 0

    with_store(act)


def test_a_first_attempt_that_arrives_after_a_refused_second_one_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of a cancelled attempt may lie in its connection's buffer until later ones have been executed."""

    async def act(store: LocalShare, shared: FlakyStore) -> None:
        demand = tokens(100)
        other = await hold(store, "other", demand, desired=100)
        attempts: list[HoldRequest] = []

        async def late_at_first(request: HoldRequest) -> Hold | HoldRefusal:
            attempts.append(request)
            if len(attempts) == 1:
                await asyncio.Event().wait()
            return await shared.store.hold(request)

        monkeypatch.setattr(shared, "hold", late_at_first)
        assert isinstance(await store.hold(HoldRequest("late", (demand,), 50, 50)), HoldRefusal)
        await store.settle(other, Use())
        await asyncio.sleep(2 * MERGE_S)
        await shared.store.hold(attempts[0])
        assert await used(shared, demand) == 0

    with_store(act)


def test_a_tenants_burst_does_not_keep_another_waiting() -> None:
    async def act(store: LocalShare, shared: FlakyStore) -> None:
        loop = virtual_loop()
        mine = Demand(Quota(scope(TPD, tenant="other"), 100), 0, 1)
        burst = [asyncio.create_task(hold(store, f"{n}", tokens(10**6))) for n in range(1_000)]
        await asyncio.sleep(0)
        asked_at = loop.time()
        assert (await hold(store, "b", mine)).granted_tokens == 100
        assert loop.time() - asked_at <= 3 * shared.latency_s
        assert sum(call.done() for call in burst) < 30
        await asyncio.gather(*burst)

    with_store(act)


def test_what_is_known_of_many_tenants_is_restored_one_by_one() -> None:
    """Together they take longer than any deadline."""

    async def act(store: LocalShare, shared: FlakyStore) -> None:
        shared.latency_s = 0.02
        scopes = [scope(CREDIT, tenant=f"{n}") for n in range(100)]
        await store.restore([Committed(each, 0, 7) for each in scopes])
        assert shared.arrived["restore"] == 100
        assert [(await shared.store.usage([Quota(each, 10)]))[0].used for each in scopes] == [7] * 100

    with_store(act)


faults = st.lists(
    st.tuples(
        st.sampled_from(["silent", "drops_answers", "refuses"]),
        st.floats(0.01, AWAY_S - SILENT_S - CEILING_S),
        st.floats(1.0, 4.0),
    ),
    max_size=4,
)
"""A fault, for how long, and how long nothing fails after it."""


@settings(max_examples=60, deadline=None)
@example(faults=[("silent", 2.03125, 1.0), ("silent", 1.0, 1.0)], replicas=1, stall_s=0.0, seed=0)
@given(faults=faults, replicas=st.integers(1, 3), stall_s=st.sampled_from([0.0, 0.03, 0.3]), seed=st.integers(0, 99))
def test_short_faults_overspend_nothing_and_leave_nothing_behind(
    faults: list[tuple[str, float, float]], replicas: int, stall_s: float, seed: int
) -> None:
    """However a store fails for less than `AWAY_S`, a day's tokens are never passed, and in the end it has what was
    used and no hold."""
    demands = tokens(3_000, measure=TPD), each(Measure.CONCURRENT, 50)

    async def run() -> None:
        loop = virtual_loop()
        shared = FlakyStore()
        stores = [LocalShare(shared, 0.2) for _ in range(replicas)]
        total = 0

        async def stall() -> None:
            while True:
                await asyncio.sleep(0.007)
                loop.stall(stall_s)

        async def request(n: int) -> None:
            nonlocal total
            store = stores[n % replicas]
            await asyncio.sleep(0.37 * n % 7)
            try:
                answer = await store.hold(HoldRequest(f"{n}", demands, 1, 100))
            except StoreAway:
                return
            if isinstance(answer, Hold):
                assert not answer.degraded
                await asyncio.sleep(0.013 * (n + seed) % 1)
                part = 1 + (n * 31 + seed) % answer.granted_tokens
                total += part
                assert (await store.settle(answer, Use(1, part))).outcome in (
                    SettleOutcome.SETTLED,
                    SettleOutcome.DEFERRED,
                    SettleOutcome.REPEATED,
                )

        requests = [asyncio.create_task(request(n)) for n in range(100)]
        stalling = asyncio.create_task(stall())
        for name, for_s, then_s in faults:
            setattr(shared, name, True)
            await asyncio.sleep(for_s)
            setattr(shared, name, False)
            await asyncio.sleep(then_s)
        await asyncio.gather(*requests)
        stalling.cancel()
        await asyncio.sleep(BACK_S)
        assert total <= 3_000
        assert not any(store.counts()["unmerged"] for store in stores)
        (state,) = await shared.store.usage([demands[0].quota])
        assert (state.used, state.held) == (total, 0)
        assert (await shared.store.usage([demands[1].quota]))[0].used == 0
        for store in stores:
            await store.aclose()

    in_virtual_time(run())
