"""Queries of usage return each event once, correct sums and every page."""

import re
from dataclasses import astuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.analytics import Analytics
from gateway.analytics.store import Parameters, Row
from gateway.analytics.sums import Dimension, Grain, Sums, TimeRange
from gateway.analytics.usage import EventCursor, Mark, Point, Total, busiest_tenants, events, series, totals
from tests.support.usage_samples import DAY_MS, HOUR_MS, MARCH, MARCH_MS, Event, event, store

ONE = Sums(
    events=1,
    prompt_tokens=100,
    cached_tokens=64,
    completion_tokens=10,
    undelivered_tokens=1,
    draft_tokens=8,
    accepted_draft_tokens=5,
    ttft_ms=40,
    ttft_events=1,
    total_latency_ms=400,
    queue_ms=3,
    engine_ns=5_000_000,
    recompute_ns=9,
    preemptions=1,
    cost_nanodollars=1_000,
)
"""Of one event as `event` makes it."""


async def every_page(analytics: Analytics, window: TimeRange, limit: int, **how: object) -> list[Event]:
    found: list[Event] = []
    after: EventCursor | None = None
    while True:
        page = await events(analytics, window, after=after, limit=limit, **how)  # type: ignore[arg-type]
        found += map(dict, page.events)
        assert len(page.events) == limit or page.next is None
        if page.next is None:
            return found
        after = page.next


async def test_totals_are_by_tenant_key_model_tier_and_price(analytics: Analytics) -> None:
    differing = [
        event(1, tenant_id="acme"),
        event(2, tenant_id="acme", key_id="key_2"),
        event(3, tenant_id="acme", key_id="key_2", served_model="large"),
        event(4, tenant_id="acme", key_id="key_2", served_model="large", tier="premium"),
        event(5, tenant_id="acme", key_id="key_2", served_model="large", tier="premium", price_version="p2"),
        event(6, tenant_id="zeta"),
        event(7, tenant_id="zeta"),
    ]
    await store(analytics, differing)
    found = await totals(analytics, MARCH)
    assert [each.sums.events for each in found] == [1, 1, 1, 1, 1, 2]
    assert found[0] == Total("acme", "key_1", "small", "standard", "p1", ONE)
    assert found[2] == Total("acme", "key_2", "large", "premium", "p2", ONE)
    assert found[5].sums.cost_nanodollars == 2_000
    assert await totals(analytics, MARCH, tenant_id="zeta") == found[5:]
    assert await totals(analytics, MARCH, tenant_id="'; DROP TABLE usage_events") == []


async def test_a_window_ends_before_its_end(analytics: Analytics) -> None:
    ends = [MARCH.start_ms - 1, MARCH.start_ms, MARCH.end_ms - 1, MARCH.end_ms]
    await store(analytics, [event(number, at_ms) for number, at_ms in enumerate(ends, start=1)])
    [total] = await totals(analytics, MARCH)
    assert total.sums.events == 2
    assert [each["sequence"] for each in (await events(analytics, MARCH)).events] == [2, 3]


async def test_copies_count_once_before_and_after_merges(analytics: Analytics) -> None:
    for token in ("first", "again", "and again"):
        await store(analytics, [event(1), event(2, MARCH_MS + HOUR_MS)], token)
    assert (await analytics.query("SELECT count() FROM usage_events")) == [(6,)]
    for _ in range(2):
        [total] = await totals(analytics, MARCH)
        assert total.sums.events == 2
        assert len((await events(analytics, MARCH)).events) == 2
        await analytics.command("OPTIMIZE TABLE usage_events FINAL")


async def test_sums_do_not_overflow(analytics: Analytics) -> None:
    most = 2**63 - 1
    amounts = {"cost_nanodollars": most, "prompt_tokens": most, "engine_ns": most, "recompute_ns": {"batch": most}}
    for number in range(1, 4):
        await store(analytics, [event(number, **amounts)])
    [total] = await totals(analytics, MARCH)
    await analytics.command("OPTIMIZE TABLE usage_by_day FINAL")
    [point] = await series(analytics, Grain.DAY, MARCH)
    assert total.sums == point.sums
    assert total.sums.cost_nanodollars == total.sums.recompute_ns == total.sums.prompt_tokens == 3 * most


async def test_a_credit_lowers_the_sum(analytics: Analytics) -> None:
    await store(analytics, [event(1, cost_nanodollars=700), event(2, cost_nanodollars=-900)])
    [total] = await totals(analytics, MARCH)
    [point] = await series(analytics, Grain.HOUR, MARCH)
    assert total.sums.cost_nanodollars == point.sums.cost_nanodollars == -200


async def test_time_to_first_token_is_over_those_that_had_one(analytics: Analytics) -> None:
    await store(analytics, [event(1, ttft_ms=30), event(2, ttft_ms=None), event(3, ttft_ms=10)])
    [total] = await totals(analytics, MARCH)
    assert (total.sums.ttft_ms, total.sums.ttft_events, total.sums.events) == (40, 2, 3)


async def test_series_are_by_bucket_and_by_what_is_asked_for(analytics: Analytics) -> None:
    await store(
        analytics,
        [
            event(1, MARCH_MS),
            event(2, MARCH_MS + 59_999, key_id="key_2"),
            event(3, MARCH_MS + 60_000),
            event(4, MARCH_MS + HOUR_MS, tenant_id="zeta"),
            event(5, MARCH_MS + DAY_MS, tier="premium"),
            event(6, MARCH.end_ms),
        ],
    )

    async def counts(grain: Grain, **how: object) -> list[tuple[int, int]]:
        points = await series(analytics, grain, MARCH, **how)  # type: ignore[arg-type]
        return [(each.bucket_ms - MARCH_MS, each.sums.events) for each in points]

    assert await counts(Grain.MINUTE) == [(0, 2), (60_000, 1), (HOUR_MS, 1), (DAY_MS, 1)]
    assert await counts(Grain.HOUR) == [(0, 3), (HOUR_MS, 1), (DAY_MS, 1)]
    assert await counts(Grain.DAY) == [(0, 4), (DAY_MS, 1)]
    assert await counts(Grain.DAY, only={Dimension.TENANT: "acme", Dimension.KEY: "key_1"}) == [(0, 2), (DAY_MS, 1)]
    assert await series(analytics, Grain.HOUR, TimeRange(MARCH_MS, MARCH_MS + HOUR_MS), by=[Dimension.KEY]) == [
        Point(MARCH_MS, {Dimension.KEY: "key_1"}, Sums.of([2 * amount for amount in astuple(ONE)])),
        Point(MARCH_MS, {Dimension.KEY: "key_2"}, ONE),
    ]


async def test_an_event_is_read_as_it_was_stored(analytics: Analytics) -> None:
    stored = event(1, MARCH_MS + 123, ttft_ms=None, request_id="it's\t\\", recompute_ns={})
    await store(analytics, [stored])
    page = await events(analytics, MARCH)
    assert page.events == (stored,)
    assert page.next is None


async def test_pages_hold_each_event_once_though_others_come_in(analytics: Analytics) -> None:
    """Many at one instant, and ids in no order."""
    stored = [event(n, MARCH_MS + n // 5, event_id=UUID(int=n * 7919 << 50 | n * 104729)) for n in range(1, 40)]
    await store(analytics, stored)
    first = await events(analytics, MARCH, limit=10)
    await store(analytics, [event(1000, MARCH_MS, event_id=UUID(int=0)), event(1001, MARCH_MS + 900)])
    rest = await every_page(analytics, MARCH, 7)
    seen = [each["sequence"] for each in first.events]
    after = await events(analytics, MARCH, after=first.next, limit=1000)
    seen += [each["sequence"] for each in after.events]
    assert sorted(seen) == [*range(1, 40), 1001]
    assert sorted(each["sequence"] for each in rest) == [*range(1, 40), 1000, 1001]


async def test_pages_can_begin_with_the_newest(analytics: Analytics) -> None:
    await store(analytics, [event(n, MARCH_MS + n // 3) for n in range(1, 20)])
    upwards = await every_page(analytics, MARCH, 4)
    assert await every_page(analytics, MARCH, 4, newest_first=True) == upwards[::-1]
    assert await every_page(analytics, MARCH, 4, newest_first=True, only={Dimension.TENANT: "nobody"}) == []


async def test_pages_can_be_of_some_events_only(analytics: Analytics) -> None:
    of_key = {"tenant_id": "acme", "key_id": "key_2"}
    await store(analytics, [event(n, MARCH_MS + n, **(of_key if n % 2 else {})) for n in range(1, 10)])
    only = {Dimension.TENANT: "acme", Dimension.KEY: "key_2"}
    assert [each["sequence"] for each in await every_page(analytics, MARCH, 2, only=only)] == [1, 3, 5, 7, 9]


async def test_the_busiest_tenants_come_first(analytics: Analytics) -> None:
    counts = {"acme": 2, "zeta": 3, "mu": 2, "none": 0}
    names = [name for name, count in counts.items() for _ in range(count)]
    await store(analytics, [event(n, MARCH_MS + n, tenant_id=name) for n, name in enumerate(names, 1)])
    await store(analytics, [event(99, MARCH_MS - 1, tenant_id="early")])
    assert await busiest_tenants(analytics, MARCH, limit=10) == ["zeta", "acme", "mu"]
    assert await busiest_tenants(analytics, MARCH, limit=1) == ["zeta"]


async def test_an_event_is_found_by_either_of_its_ids(analytics: Analytics) -> None:
    await store(analytics, [event(1), event(2, http_request_id="req_1"), event(3), event(4, tenant_id="zeta")])
    for id, found in {"req_1": [1, 2], "http_3": [3], "http_4": [], "x": []}.items():
        page = await events(analytics, MARCH, only={Dimension.TENANT: "acme"}, either_id=id)
        assert [each["sequence"] for each in page.events] == found, id


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_is_bounded(analytics: Analytics, limit: int) -> None:
    with pytest.raises(ValueError, match="page"):
        await events(analytics, MARCH, limit=limit)


@given(start=st.integers(0, 2**40), length=st.integers(0, 2**40), unit=st.sampled_from([1, 60_000, HOUR_MS]))
def test_a_window_widens_to_whole_units(start: int, length: int, unit: int) -> None:
    window = TimeRange(start, start + length)
    wide = window.widened_to(unit)
    assert wide.start_ms % unit == wide.end_ms % unit == 0
    assert 0 <= window.start_ms - wide.start_ms < unit
    assert 0 <= wide.end_ms - window.end_ms < unit


async def test_a_request_lookup_reads_few_granules(analytics: Analytics, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(3):
        await store(analytics, [event(10 * batch + number) for number in range(10)])
    asked = []
    query = analytics.query

    async def noting(sql: str, parameters: Parameters | None = None) -> list[Row]:
        asked.append((sql, parameters))
        return await query(sql, parameters)

    monkeypatch.setattr(analytics, "query", noting)
    page = await events(analytics, MARCH, marked={Mark.REQUEST: "req_12"}, limit=1)
    assert [each["sequence"] for each in page.events] == [12]
    [(sql, parameters)] = asked
    plan = "\n".join(line for (line,) in await query(f"EXPLAIN indexes = 1 {sql}", parameters))
    skipped = plan.split("Name: by_request")[1]
    assert re.search(r"Granules: (\d)/3", skipped)[1] in "12"  # 1, but for a filter that took another for it
