"""The sums of the dashboards are the sums of the distinct events: at once under retries, after a rebuild under
anything."""

import asyncio
from collections import Counter
from dataclasses import astuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.analytics import Analytics, migrate, open_analytics, rollups
from gateway.analytics.rollups import find_drift, rebuild
from gateway.analytics.schema import shipped_migrations
from gateway.analytics.sums import Dimension, Grain, TimeRange
from gateway.analytics.usage import series, totals
from tests.support.usage_samples import DAY_MS, HOUR_MS, MARCH, MARCH_MS, Event, event, store

FIRST_HOUR = TimeRange(MARCH_MS, MARCH_MS + HOUR_MS)
FIRST_DAY = TimeRange(MARCH_MS, MARCH_MS + DAY_MS)


async def counts(analytics: Analytics) -> list[int]:
    """Events in the sums of each grain."""
    return [sum(each.sums.events for each in await series(analytics, grain, MARCH)) for grain in Grain]


async def drift(analytics: Analytics) -> list[list[TimeRange]]:
    return [await find_drift(analytics, grain, MARCH) for grain in Grain]


async def without_views(analytics: Analytics) -> None:
    for grain in Grain:
        await analytics.command(f"DROP VIEW {grain.table}_view")


async def with_views(analytics: Analytics) -> None:
    [migration] = [each for each in shipped_migrations() if each.name == "rollups"]
    for statement in migration.statements:
        await analytics.command(statement)


async def test_a_batch_that_is_repeated_with_its_token_is_stored_once_everywhere(analytics: Analytics) -> None:
    """Though it lies in two months, and so in two parts."""
    batch = [event(n, MARCH_MS - 5 + n) for n in range(1, 10)]
    for _ in range(3):
        await store(analytics, batch, "topic-0-17-25")
    whole = TimeRange(MARCH_MS - DAY_MS, MARCH.end_ms)
    assert await analytics.query("SELECT count() FROM usage_events FINAL") == [(9,)]
    for grain in Grain:
        assert sum(each.sums.events for each in await series(analytics, grain, whole)) == 9
    await store(analytics, [event(10)], "topic-0-26-26")
    assert await counts(analytics) == [6, 6, 6]


async def test_a_repeated_batch_reaches_the_views_that_the_first_attempt_did_not(analytics: Analytics) -> None:
    """As after a death between the table and its views."""
    await without_views(analytics)
    await store(analytics, [event(1), event(2)], "token")
    await with_views(analytics)
    assert await counts(analytics) == [0, 0, 0]
    for _ in range(2):
        await store(analytics, [event(1), event(2)], "token")
        assert await counts(analytics) == [2, 2, 2]
    assert await analytics.query("SELECT count() FROM usage_events FINAL") == [(2,)]


async def test_what_the_views_have_missed_is_found_and_added(analytics: Analytics) -> None:
    await store(analytics, [event(1), event(2, MARCH_MS + DAY_MS)])
    await without_views(analytics)
    await store(analytics, [event(3), event(4, tenant_id="zeta")])
    await with_views(analytics)
    assert await drift(analytics) == [[FIRST_HOUR], [FIRST_HOUR], [FIRST_DAY]]

    assert await rebuild(analytics, FIRST_HOUR) == 6  # in each grain one sum that was short and one that was not there
    assert await counts(analytics) == [4, 4, 4]
    [acme, zeta] = await series(analytics, Grain.HOUR, FIRST_HOUR, by=Dimension)
    assert (acme.sums.events, acme.sums.cost_nanodollars) == (2, 2_000)
    assert (zeta.sums.events, zeta.sums.cost_nanodollars) == (1, 1_000)


async def test_what_came_twice_is_found_and_taken_off(analytics: Analytics) -> None:
    await store(analytics, [event(1), event(2)], "first")
    await store(analytics, [event(2), event(3)], "overlapping")
    assert await counts(analytics) == [4, 4, 4]
    assert await rebuild(analytics, MARCH) == 3
    assert await counts(analytics) == [3, 3, 3]
    assert await drift(analytics) == [[], [], []]
    assert await rebuild(analytics, MARCH) == 0


async def test_sums_of_no_event_at_all_go(analytics: Analytics) -> None:
    await store(analytics, [event(1), event(2, tenant_id="zeta")])
    await analytics.command("ALTER TABLE usage_events DELETE WHERE sequence = 2 SETTINGS mutations_sync = 1")
    await rebuild(analytics, MARCH)
    assert [dict(each.of) for each in await series(analytics, Grain.DAY, MARCH, by=[Dimension.TENANT])] == [
        {Dimension.TENANT: "acme"}
    ]


async def test_a_rebuild_leaves_what_lies_outside_alone(analytics: Analytics) -> None:
    for at_ms in (MARCH_MS - 1, MARCH_MS, MARCH_MS + DAY_MS):
        for _ in range(2):
            await store(analytics, [event(at_ms - MARCH_MS + 2, at_ms)])
    await rebuild(analytics, TimeRange(MARCH_MS, MARCH_MS + 1))
    whole = TimeRange(MARCH_MS - DAY_MS, MARCH.end_ms)
    assert [each.sums.events for each in await series(analytics, Grain.DAY, whole)] == [2, 1, 2]


async def test_two_may_rebuild_at_once(clickhouse_url: str) -> None:
    stores = [open_analytics(clickhouse_url) for _ in range(4)]
    await migrate(stores[0])
    for _ in range(3):
        await store(stores[0], [event(n, MARCH_MS + n * HOUR_MS // 2, tenant_id=f"t{n % 3}") for n in range(1, 8)])
    async with asyncio.TaskGroup() as all_of_them:
        for each in stores:
            all_of_them.create_task(rebuild(each, MARCH))
    assert await counts(stores[0]) == [7, 7, 7]
    for each in stores:
        await each.aclose()


async def test_a_correction_in_several_batches(analytics: Analytics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "MAX_INSERT_ROWS", 4)
    for _ in range(2):
        await store(analytics, [event(n, tenant_id=f"t{n}") for n in range(1, 12)])
    assert await rebuild(analytics, MARCH) == 33
    assert await counts(analytics) == [11, 11, 11]


numbers = st.integers(1, 12)
deliveries = st.lists(
    st.tuples(st.lists(numbers, min_size=1, max_size=6, unique=True), st.integers(1, 2)), min_size=1, max_size=4
)
"""Batches of numbers, each delivered once or twice."""


def delivered(number: int) -> Event:
    return event(
        number,
        MARCH_MS + number * HOUR_MS // 7,
        tenant_id=f"t{number % 2}",
        served_model=f"m{number % 3}",
        cost_nanodollars=10**17 + number,
        ttft_ms=None if number % 5 == 0 else number,
    )


@given(deliveries)
@settings(max_examples=6)
def test_series_after_a_rebuild_are_totals_are_the_distinct_events(batches: list[tuple[list[int], int]]) -> None:
    async def play() -> None:
        analytics = open_analytics("chdb://memory")
        await migrate(analytics)
        for place, (batch, times) in enumerate(batches):
            for _ in range(times):
                await store(analytics, [delivered(number) for number in batch], f"batch-{place}")
        # Retries alone have changed nothing: only what is in several batches is counted for each.
        in_batches = Counter(number for batch, _ in batches for number in batch)
        assert await counts(analytics) == [in_batches.total()] * 3

        await rebuild(analytics, MARCH)
        distinct = [delivered(number) for number in in_batches]
        bill = await totals(analytics, MARCH)
        assert sum(each.sums.cost_nanodollars for each in bill) == sum(each["cost_nanodollars"] for each in distinct)
        of_bill = Counter[tuple[str, ...]]()
        for line in bill:
            of_bill[line.tenant_id, line.key_id, line.served_model, line.tier] += line.sums.events
        for grain in Grain:
            points = await series(analytics, grain, MARCH, by=Dimension)
            of_points = Counter[tuple[str, ...]]()
            for point in points:
                of_points[tuple(point.of.values())] += point.sums.events
            assert of_points == of_bill
            amounts = [astuple(each.sums) for each in points]
            assert [sum(each) for each in zip(*amounts, strict=True)] == [
                sum(each) for each in zip(*(astuple(line.sums) for line in bill), strict=True)
            ]
        await analytics.aclose()

    asyncio.run(play())
