"""The limiter over the store of this process."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from gateway.admission import (
    Demand,
    Limiter,
    LimitStore,
    Measure,
    MemoryStore,
    Quota,
    QuotaExceeded,
    SettleOutcome,
    demands_of,
    limiter,
    tightest,
)
from gateway.admission.model import MAX_AMOUNT, Hold, HoldRefusal, HoldRequest
from gateway.admission.store import HOLD_TTL_MS
from gateway.billing.prices import MAX_NANODOLLARS_PER_TOKEN, PriceTerms, PriceVersion
from tests.support.limit_stores import Clock, each, scope, tokens

RPM = Measure.REQUESTS_PER_MINUTE


async def test_without_demands_no_store_is_asked() -> None:
    unlimited = Limiter(MemoryStore())
    hold = await unlimited.hold("a", [], minimum_tokens=1, desired_tokens=77)
    assert (hold.granted_tokens, hold.bound_by, hold.states) == (77, None, ())
    assert (await unlimited.settle(hold, 5)).outcome is SettleOutcome.SETTLED
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
    assert (refused.value.code, refused.value.scope) == (code, demand.quota.scope)
    assert refused.value.limit == demand.quota.limit
    assert [state.quota for state in refused.value.states] == [demand.quota]
    assert gate.counts()[f"refused_{demand.quota.scope.measure}"] == 1
    await gate.aclose()


async def test_headers_speak_of_the_quota_with_the_least_left(store: LimitStore) -> None:
    gate = Limiter(store)
    minute, day = tokens(500), tokens(300, measure=Measure.TOKENS_PER_DAY)
    hold = await gate.hold("a", [each(RPM, 5), minute, day], minimum_tokens=1, desired_tokens=100)
    tight = tightest(hold.states, [Measure.TOKENS_PER_MINUTE, Measure.TOKENS_PER_DAY])
    assert (tight.quota, tight.remaining) == (day.quota, 200)
    assert tightest(hold.states, [Measure.CONCURRENT]) is None
    await gate.aclose()


async def test_only_open_holds_are_extended(store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limiter, "HEARTBEAT_S", 0.001)
    gate = Limiter(store)
    slots = each(Measure.CONCURRENT, 1)
    hold = await gate.hold("a", [slots], minimum_tokens=0, desired_tokens=0)
    for _ in range(5):
        clock.advance(HOLD_TTL_MS / 1000 - 1)
        await asyncio.sleep(0.02)
    assert (await gate.settle(hold, 0)).outcome is SettleOutcome.SETTLED
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


async def test_the_hold_of_a_cancelled_call_is_released(store: LimitStore, monkeypatch: pytest.MonkeyPatch) -> None:
    take, taken = store.hold, asyncio.Event()

    async def hold(request: HoldRequest) -> Hold | HoldRefusal:
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


LARGEST_WINDOW = 2**20
LARGEST_N = 128
MONEY = Measure.NANODOLLARS_PER_MONTH
CREDIT = Measure.CREDIT_NANODOLLARS


async def test_the_largest_request_at_the_largest_price_is_counted_exactly(store: LimitStore) -> None:
    stated = PriceTerms.from_dollars("m", Decimal(2500), Decimal(2500), multipliers={"premium": Decimal(4)})
    price = PriceVersion("v", datetime.now(UTC), stated).price("premium")
    assert price.completion == MAX_NANODOLLARS_PER_TOKEN
    quotas = [Quota(scope(measure), MAX_AMOUNT) for measure in (MONEY, CREDIT, Measure.TOKENS_PER_DAY)]
    demands = demands_of(
        quotas,
        prompt_tokens=LARGEST_WINDOW,
        choices=LARGEST_N,
        prompt_nanodollars=price.of(LARGEST_WINDOW, 0, 0),
        token_nanodollars=price.completion,
    )
    gate = Limiter(store)
    hold = await gate.hold("a", demands, minimum_tokens=1, desired_tokens=LARGEST_WINDOW)
    assert (hold.granted_tokens, hold.bound_by) == (LARGEST_WINDOW, None)
    cost = price.of(LARGEST_WINDOW, 0, LARGEST_N * LARGEST_WINDOW)
    await gate.settle(hold, (LARGEST_N + 1) * LARGEST_WINDOW, cost)
    assert [state.used for state in await gate.usage(quotas[:2])] == [cost, cost]
    await gate.aclose()


@pytest.mark.parametrize("measure", [MONEY, CREDIT])
async def test_what_no_limit_can_count_is_refused_or_cut(store: LimitStore, measure: Measure) -> None:
    """At a price that an earlier program has accepted."""
    dollars_a_token = 1_000 * 10**9
    quota = Quota(scope(measure), MAX_AMOUNT)
    gate = Limiter(store)
    with pytest.raises(QuotaExceeded) as refused:
        await gate.hold("a", [Demand(quota, 0, LARGEST_N * dollars_a_token)], minimum_tokens=100, desired_tokens=100)
    assert (refused.value.code, refused.value.retry_after_ms) == ("insufficient_quota", None)
    assert gate.counts()[f"refused_{measure.value}"] == 1
    hold = await gate.hold("b", [Demand(quota, 0, dollars_a_token)], minimum_tokens=1, desired_tokens=LARGEST_WINDOW)
    assert hold.granted_tokens == MAX_AMOUNT // dollars_a_token
    await gate.aclose()
