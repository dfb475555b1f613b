"""The limiter over the store of this process."""

import asyncio

import pytest

from gateway.admission import Limiter, LimitStore, Measure, MemoryStore, Outcome, QuotaExceeded, limiter, tightest
from gateway.admission.model import Hold, HoldRequest, Refusal
from gateway.admission.store import HOLD_TTL_MS
from tests.gateway.admission.stores import Clock, each, tokens

pytestmark = pytest.mark.anyio

RPM = Measure.REQUESTS_PER_MINUTE


async def test_without_demands_no_store_is_asked() -> None:
    unlimited = Limiter(MemoryStore())
    hold = await unlimited.hold("a", [], minimum_tokens=1, desired_tokens=77)
    assert (hold.granted_tokens, hold.bound_by, hold.states) == (77, None, ())
    assert (await unlimited.settle(hold, 5)).outcome is Outcome.SETTLED
    assert not await unlimited.extend(hold)
    assert await unlimited.usage([]) == ()
    await unlimited.aclose()


@pytest.mark.parametrize(
    ("demand", "code"),
    [
        (each(RPM, 1), "rate_limit_exceeded"),
        (tokens(0), "request_exceeds_limit"),
        (tokens(0, measure=Measure.NANODOLLARS_PER_MONTH), "insufficient_quota"),
    ],
)
async def test_a_refusal_says_what_tripped(store: LimitStore, demand, code: str) -> None:
    gate = Limiter(store)
    await gate.hold("a", [each(RPM, 1)], minimum_tokens=0, desired_tokens=0)
    with pytest.raises(QuotaExceeded) as refused:
        await gate.hold("b", [demand], minimum_tokens=1, desired_tokens=10)
    assert refused.value.code == code
    assert refused.value.scope == demand.quota.scope
    assert refused.value.limit == demand.quota.limit
    assert [state.quota for state in refused.value.states] == [demand.quota]
    assert gate.counts()[f"refused_{demand.quota.scope.measure}"] == 1
    await gate.aclose()


async def test_headers_speak_of_the_quota_with_the_least_left(store: LimitStore) -> None:
    gate = Limiter(store)
    minute, day = tokens(500), tokens(300, measure=Measure.TOKENS_PER_DAY)
    hold = await gate.hold("a", [each(RPM, 5), minute, day], minimum_tokens=1, desired_tokens=100)
    tight = tightest(hold.states, [Measure.TOKENS_PER_MINUTE, Measure.TOKENS_PER_DAY])
    assert tight is not None
    assert (tight.quota, tight.remaining) == (day.quota, 200)
    assert tightest(hold.states, [Measure.CONCURRENT]) is None
    await gate.aclose()


async def test_open_holds_are_kept_alive_and_no_longer(
    store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limiter, "HEARTBEAT_S", 0.001)
    gate = Limiter(store)
    slots = each(Measure.CONCURRENT, 1)
    hold = await gate.hold("a", [slots], minimum_tokens=0, desired_tokens=0)
    for _ in range(5):
        clock.advance(HOLD_TTL_MS / 1000 - 1)
        await asyncio.sleep(0.02)
    assert (await gate.settle(hold, 0)).outcome is Outcome.SETTLED
    await asyncio.sleep(0.02)
    assert (await gate.usage([slots.quota]))[0].used == 0
    assert gate.counts()["open"] == 0
    await gate.aclose()


async def test_a_settlement_is_completed_though_its_caller_is_cancelled(store: LimitStore) -> None:
    gate = Limiter(store)
    demand = tokens(1_000)
    hold = await gate.hold("a", [demand], minimum_tokens=1, desired_tokens=100)
    caller = asyncio.create_task(gate.settle(hold, 40))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    async with asyncio.timeout(30):
        while not gate.counts()["settled"]:
            await asyncio.sleep(0.001)
    assert (await gate.usage([demand.quota]))[0].used == 40
    await gate.aclose()


async def test_what_is_held_for_one_that_was_cancelled_meanwhile_is_freed(
    store: LimitStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, taken = store.hold, asyncio.Event()

    async def hold(request: HoldRequest) -> Hold | Refusal:
        answer = await take(request)
        taken.set()
        await asyncio.sleep(60)  # the answer is on its way
        return answer

    monkeypatch.setattr(store, "hold", hold)
    gate = Limiter(store)
    demand = each(Measure.CONCURRENT, 1)
    waiting = asyncio.create_task(gate.hold("a", [demand], minimum_tokens=1, desired_tokens=1))
    await taken.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait(gate._settling)
    [state] = await gate.usage([demand.quota])
    assert state.remaining == 1
    await gate.aclose()
