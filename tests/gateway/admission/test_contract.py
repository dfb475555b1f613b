"""The contract of every store of limits."""

from dataclasses import replace

import pytest

from gateway.admission.model import Committed, Demand, LimitState, Measure, Quota, SettleOutcome, Use
from gateway.admission.store import HOLD_TTL_MS, LimitStore
from gateway.tenancy import ScopeKind
from tests.support.limit_stores import Clock, each, hold, refusal, scope, tokens

RPM = Measure.REQUESTS_PER_MINUTE
TPM = Measure.TOKENS_PER_MINUTE
TPD = Measure.TOKENS_PER_DAY
MONEY = Measure.NANODOLLARS_PER_MONTH
CREDIT = Measure.CREDIT_NANODOLLARS


async def used(store: LimitStore, demand: Demand) -> int:
    (state,) = await store.usage([demand.quota])
    return state.used


async def test_grants_what_is_desired_where_there_is_room(store: LimitStore) -> None:
    demand = tokens(1000, prompt=10)
    taken = await hold(store, "a", demand, desired=100)
    assert (taken.granted_tokens, taken.bound_by) == (100, None)
    assert [state.used for state in taken.states] == [110]
    assert taken.states[0].remaining == 890


async def test_grants_up_to_the_very_token(store: LimitStore) -> None:
    demand = tokens(100, prompt=10)
    taken = await hold(store, "a", demand, desired=500)
    assert (taken.granted_tokens, taken.bound_by) == (90, demand.quota.scope)
    assert await used(store, demand) == 100


async def test_two_answers_take_two_tokens_for_each_one_granted(store: LimitStore) -> None:
    taken = await hold(store, "a", tokens(101, prompt=10, per_token=2), desired=500)
    assert taken.granted_tokens == 45


async def test_refuses_below_the_minimum_and_takes_nothing(store: LimitStore) -> None:
    requests, few = each(RPM, 10), tokens(20, prompt=10)
    refused = await refusal(store, "a", requests, few, minimum=11)
    assert refused.quota == few.quota
    assert await used(store, requests) == 0
    assert await used(store, few) == 0


async def test_what_never_fits_has_no_retry_time(store: LimitStore) -> None:
    refused = await refusal(store, "a", each(RPM, 10), tokens(20, prompt=30))
    assert refused.retry_after_ms is None


async def test_the_quota_to_wait_longest_for_is_named(store: LimitStore) -> None:
    day = tokens(100, measure=TPD)
    await hold(store, "a", tokens(100), day, desired=100)
    refused = await refusal(store, "b", tokens(100), day)
    assert (refused.quota, refused.retry_after_ms) == (day.quota, 12 * 3600 * 1000)


async def test_settling_commits_the_use_and_frees_the_rest(store: LimitStore) -> None:
    requests, demand = each(RPM, 10), tokens(1000, prompt=10)
    taken = await hold(store, "a", requests, demand, desired=500)
    settlement = await store.settle(taken, Use(1, 60))
    assert (settlement.outcome, settlement.exceeded) == (SettleOutcome.SETTLED, False)
    assert await used(store, demand) == 60
    assert await used(store, requests) == 1


async def test_releasing_commits_nothing(store: LimitStore) -> None:
    requests, demand = each(RPM, 10), tokens(1000, prompt=10)
    await store.settle(await hold(store, "a", requests, demand), Use())
    assert await used(store, demand) == 0
    assert await used(store, requests) == 0


async def test_the_same_request_holds_once_and_settles_once(store: LimitStore) -> None:
    demand = tokens(1000)
    first = await hold(store, "a", demand)
    again = await hold(store, "a", demand)
    assert (again.granted_tokens, again.at_ms, again.bound_by) == (first.granted_tokens, first.at_ms, None)
    assert await used(store, demand) == 100
    assert (await store.settle(first, Use(1, 70))).outcome is SettleOutcome.SETTLED
    assert (await store.settle(again, Use(1, 90))).outcome is SettleOutcome.REPEATED
    assert await used(store, demand) == 70


async def test_tenants_may_use_the_same_request_id(store: LimitStore) -> None:
    mine, theirs = tokens(1000), Demand(Quota(scope(TPM, tenant="other"), 1000), 0, 1)
    await hold(store, "a", mine)
    await hold(store, "a", theirs, desired=7)
    assert await used(store, mine) == 100
    assert await used(store, theirs) == 7


async def test_using_more_than_was_held_is_committed_and_said(store: LimitStore) -> None:
    demand = tokens(1000)
    settlement = await store.settle(await hold(store, "a", demand, desired=10), Use(1, 30))
    assert settlement.exceeded
    assert await used(store, demand) == 30


async def test_a_hold_without_sign_of_life_expires(store: LimitStore, clock: Clock) -> None:
    slots = each(Measure.CONCURRENT, 1)
    day = tokens(1000, measure=TPD)
    taken = await hold(store, "a", slots, day)
    clock.advance(HOLD_TTL_MS / 1000 - 1)
    assert (await refusal(store, "b", slots)).quota == slots.quota
    clock.advance(1)
    await hold(store, "b", slots)
    assert await used(store, day) == 0
    assert not await store.extend(taken)


async def test_what_an_expired_hold_used_is_committed_late_and_once(store: LimitStore, clock: Clock) -> None:
    demand = tokens(1000, measure=TPD)
    taken = await hold(store, "a", demand)
    clock.advance(HOLD_TTL_MS / 1000)
    assert (await store.settle(taken, Use(1, 50))).outcome is SettleOutcome.LATE
    assert (await store.settle(taken, Use(1, 50))).outcome is SettleOutcome.REPEATED
    assert await used(store, demand) == 50


async def test_a_heartbeat_keeps_a_hold(store: LimitStore, clock: Clock) -> None:
    demand = tokens(1000, measure=TPD)
    taken = await hold(store, "a", demand)
    for _ in range(5):
        clock.advance(HOLD_TTL_MS / 1000 - 1)
        assert await store.extend(taken)
    assert await used(store, demand) == 100
    assert (await store.settle(taken, Use(1, 3))).outcome is SettleOutcome.SETTLED
    assert not await store.extend(taken)
    assert await used(store, demand) == 3


async def test_use_of_a_hold_that_the_store_does_not_know_is_committed_once(store: LimitStore) -> None:
    demand = tokens(1000, measure=TPD)
    taken = replace(await hold(store, "a", demand), request_id="b")
    assert (await store.settle(taken, Use(1, 50))).outcome is SettleOutcome.UNKNOWN
    assert (await store.settle(taken, Use(1, 50))).outcome is SettleOutcome.REPEATED
    assert await used(store, demand) == 150


async def test_a_hold_that_comes_after_its_settlement_takes_nothing(store: LimitStore) -> None:
    """A call that was given up may still be on its way when what it held has been released by another."""
    slots, day = each(Measure.CONCURRENT, 1), tokens(1000, measure=TPD)
    unheard = replace(await hold(store, "a", day, slots, desired=7), request_id="b")
    assert (await store.settle(unheard, Use())).outcome is SettleOutcome.UNKNOWN
    late = await hold(store, "b", day, slots, desired=100)
    assert (late.granted_tokens, late.at_ms) == (7, unheard.at_ms)
    assert [await used(store, each) for each in (slots, day)] == [1, 7]


@pytest.mark.parametrize("later_s", [0, 4, 4.999])
async def test_no_wait_is_longer_than_its_window(store: LimitStore, clock: Clock, later_s: float) -> None:
    clock.now_ms += 1
    minute, day = each(RPM, 1), tokens(1, measure=TPD)
    await store.settle(await hold(store, "a", minute, day, desired=1), Use(1, 1))
    clock.advance(later_s)
    refused = await refusal(store, "b", minute)
    assert refused.retry_after_ms == 60_000 - later_s * 1000
    assert [state.reset_ms for state in await store.usage([minute.quota])] == [refused.retry_after_ms]
    assert (await refusal(store, "c", day)).retry_after_ms == 12 * 3600 * 1000 - 1 - later_s * 1000


async def test_a_clock_that_was_set_back_makes_no_wait_longer(store: LimitStore, clock: Clock) -> None:
    requests = each(RPM, 1)
    await store.settle(await hold(store, "a", requests), Use(1))
    clock.advance(-7)
    assert (await refusal(store, "b", requests)).retry_after_ms == 60_000
    clock.advance(60)
    await hold(store, "b", requests)


async def test_a_minute_slides(store: LimitStore, clock: Clock) -> None:
    requests = each(RPM, 2)
    await store.settle(await hold(store, "a", requests), Use(1))
    clock.advance(30)
    await store.settle(await hold(store, "b", requests), Use(1))
    refused = await refusal(store, "c", requests)
    assert refused.retry_after_ms == 30_000
    clock.advance(29.999)
    await refusal(store, "c", requests)
    clock.advance(0.001)
    await hold(store, "c", requests)
    assert (await refusal(store, "d", requests)).retry_after_ms == 30_000


async def test_a_request_that_runs_on_leaves_the_minute_of_its_admission(store: LimitStore, clock: Clock) -> None:
    minute, slots = each(RPM, 1), each(Measure.CONCURRENT, 2)
    taken = await hold(store, "a", minute, slots)
    for _ in range(3):
        clock.advance(25)
        await store.extend(taken)
    assert await used(store, minute) == 0
    await hold(store, "b", minute, slots)
    assert await used(store, slots) == 2
    await store.settle(taken, Use(1))
    assert await used(store, minute) == 1
    assert await used(store, slots) == 1


@pytest.mark.parametrize(
    ("measure", "now_ms", "left_ms"),
    [
        (TPD, 1_772_366_400_000, 43_200_000),
        (MONEY, 1_798_761_599_000, 1_000),  # 2026-12-31 23:59:59
        (MONEY, 1_772_323_199_999, 1),  # 2026-02-28
        (MONEY, 1_835_395_199_000, 86_401_000),  # 2028-02-28 of a leap year
    ],
)
async def test_days_and_months_follow_the_calendar(
    store: LimitStore, clock: Clock, measure: Measure, now_ms: int, left_ms: int
) -> None:
    clock.now_ms = now_ms
    demand = tokens(100, measure=measure)
    taken = await hold(store, "a", demand)
    assert taken.states[0].reset_ms == left_ms
    await store.settle(taken, Use(1, 100, 100))
    assert (await refusal(store, "b", demand)).retry_after_ms == left_ms
    clock.now_ms += left_ms - 1
    assert await used(store, demand) == 100
    clock.now_ms += 1
    assert await used(store, demand) == 0


async def test_a_clock_that_jumps_back_opens_no_window_twice(store: LimitStore, clock: Clock) -> None:
    requests = each(RPM, 2)
    await store.settle(await hold(store, "a", requests), Use(1))
    clock.advance(-3600)
    await store.settle(await hold(store, "b", requests), Use(1))
    refused = await refusal(store, "c", requests)
    assert refused.retry_after_ms is not None
    assert refused.retry_after_ms > 0
    assert all(state.reset_ms > 0 for state in refused.states)


async def test_use_settled_after_its_window_counts_in_no_other(store: LimitStore, clock: Clock) -> None:
    clock.now_ms = 1_798_761_590_000
    demand = tokens(100, measure=MONEY)
    taken = await hold(store, "a", demand)
    clock.advance(20)
    assert (await store.settle(taken, Use(1, 5, 60))).outcome is SettleOutcome.SETTLED
    assert await used(store, demand) == 0


async def test_nothing_is_rounded_up_to_the_largest_amounts(store: LimitStore) -> None:
    most = 2**53 - 1
    demand = Demand(Quota(scope(MONEY), most), 1, 3)
    taken = await hold(store, "a", demand, desired=2**50)
    await store.settle(taken, Use(1, 1, most - 4))
    assert await used(store, demand) == most - 4
    assert (await hold(store, "b", demand, desired=9)).granted_tokens == 1
    assert await used(store, demand) == most
    assert (await refusal(store, "c", demand, minimum=0)).quota == demand.quota


async def test_a_hold_of_nothing_takes_and_frees_nothing(store: LimitStore) -> None:
    demand = tokens(0, per_token=0)
    taken = await hold(store, "a", demand)
    await hold(store, "b", tokens(10), desired=10)
    assert (await store.settle(taken, Use())).outcome is SettleOutcome.SETTLED
    assert await used(store, demand) == 10


async def test_scopes_are_apart(store: LimitStore) -> None:
    by_key = Demand(Quota(scope(TPM, ScopeKind.KEY, "k"), 100), 0, 1)
    by_model = Demand(Quota(scope(TPM, ScopeKind.MODEL, "k"), 30), 0, 1)
    assert (await hold(store, "a", by_key, by_model, desired=50)).bound_by == by_model.quota.scope
    assert await used(store, by_key) == 30
    assert await used(store, tokens(100)) == 0


async def test_an_unused_quota_stands_at_nothing(store: LimitStore) -> None:
    quotas = [tokens(100).quota, each(Measure.CONCURRENT, 3).quota]
    assert await store.usage(quotas) == tuple(LimitState(quota, 0, 0, 0) for quota in quotas)


async def test_what_is_held_is_told_apart_from_what_was_used(store: LimitStore) -> None:
    demand = tokens(1000, prompt=10)
    taken = await hold(store, "a", demand, desired=90)
    assert (taken.states[0].used, taken.states[0].held) == (100, 100)
    assert (await store.settle(taken, Use(1, 30))).outcome is SettleOutcome.SETTLED
    await hold(store, "b", demand, desired=10)
    (state,) = await store.usage([demand.quota])
    assert (state.used, state.held, state.remaining) == (50, 20, 950)


async def test_credit_is_never_given_back_by_time(store: LimitStore, clock: Clock) -> None:
    credit = tokens(100, measure=CREDIT)
    taken = await hold(store, "a", credit, desired=90)
    await store.settle(taken, Use(1, 80, 80))
    clock.advance(400 * 86_400)
    again = await hold(store, "b", credit, desired=90)
    assert (again.granted_tokens, again.bound_by) == (20, credit.quota.scope)
    await store.settle(again, Use(1, 20, 20))
    refused = await refusal(store, "c", credit)
    assert refused.retry_after_ms is None


async def test_what_is_known_from_the_books_is_restored_once(store: LimitStore, clock: Clock) -> None:
    month, credit, day = tokens(1000, measure=MONEY), tokens(1000, measure=CREDIT), tokens(1000, measure=TPD)
    known = [Committed(each.quota.scope, clock.now_ms, 300) for each in (month, credit, day)]
    for _ in range(2):
        await store.restore(known)
    assert [await used(store, each) for each in (month, credit, day)] == [300, 300, 300]
    taken = await hold(store, "a", month, credit, desired=100)
    await store.settle(taken, Use(1, 50, 50))
    await store.restore(known)
    assert [await used(store, each) for each in (month, credit, day)] == [350, 350, 300]


async def test_what_is_known_of_a_window_that_has_passed_changes_nothing(store: LimitStore, clock: Clock) -> None:
    month, credit, day = tokens(1000, measure=MONEY), tokens(1000, measure=CREDIT), tokens(1000, measure=TPD)
    long_ago = clock.now_ms - 40 * 86_400_000
    await store.restore([Committed(each.quota.scope, long_ago, 300) for each in (month, credit, day)])
    assert [await used(store, each) for each in (month, credit, day)] == [0, 300, 0]
