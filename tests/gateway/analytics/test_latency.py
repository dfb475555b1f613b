"""Percentiles are within the stated error of the exact ones, in every group, at every store."""

import pytest

from gateway.analytics import Analytics
from gateway.analytics.latency import RELATIVE_ERROR, LatencyPoint, Percentiles, latencies
from gateway.analytics.sums import Dimension, Grain
from tests.support.usage_samples import DAY_MS, HOUR_MS, MARCH, MARCH_MS, event, store


def near(milliseconds: float) -> object:
    return pytest.approx(milliseconds, rel=RELATIVE_ERROR + 1e-9)


def same(percentiles: Percentiles | None, milliseconds: float) -> bool:
    return percentiles == Percentiles(*[near(milliseconds)] * 3)  # type: ignore[arg-type]


async def whole(analytics: Analytics, **how: object) -> LatencyPoint:
    [point] = await latencies(analytics, MARCH, limit=10, **how)  # type: ignore[arg-type]
    return point


async def test_percentiles_are_those_of_the_values(analytics: Analytics) -> None:
    await store(analytics, [event(n, MARCH_MS + n, ttft_ms=10 * n, total_latency_ms=5000) for n in range(1, 101)])
    point = await whole(analytics)
    assert (point.bucket_ms, point.of, point.events) == (None, {}, 100)
    assert point.latencies.ttft_ms == Percentiles(
        pytest.approx(500, rel=0.03), pytest.approx(950, rel=0.03), pytest.approx(990, rel=0.03)
    )
    assert same(point.latencies.total_latency_ms, 5000)
    assert same(point.latencies.queue_ms, 3)


async def test_time_between_tokens_is_without_the_first_and_without_pauses(analytics: Analytics) -> None:
    await store(analytics, [event(1, ttft_ms=100, total_latency_ms=1000, paused_ms=90, completion_tokens=10)])
    assert same((await whole(analytics)).latencies.itl_ms, 90)


async def test_requests_without_a_value_count_for_none(analytics: Analytics) -> None:
    await store(analytics, [event(1, ttft_ms=None, completion_tokens=0)])
    point = await whole(analytics)
    assert point.events == 1
    assert point.latencies.ttft_ms is point.latencies.itl_ms is None
    await store(analytics, [event(2, ttft_ms=50, completion_tokens=1)])
    both = await whole(analytics)
    assert both.events == 2
    assert same(both.latencies.ttft_ms, 50)
    assert both.latencies.itl_ms is None


async def test_a_pause_longer_than_the_answer_is_no_negative_time(analytics: Analytics) -> None:
    await store(analytics, [event(1, ttft_ms=100, total_latency_ms=200, paused_ms=500)])
    assert (await whole(analytics)).latencies.itl_ms == Percentiles(0, 0, 0)


async def test_points_are_by_bucket_and_group(analytics: Analytics) -> None:
    await store(
        analytics,
        [
            event(1, MARCH_MS, tier="premium", ttft_ms=10),
            event(2, MARCH_MS + 1, tier="standard", ttft_ms=20),
            event(3, MARCH_MS + HOUR_MS, tier="standard", ttft_ms=30),
            event(4, MARCH_MS + HOUR_MS, tier="standard", tenant_id="zeta", ttft_ms=4000),
            event(5, MARCH_MS - 1, ttft_ms=9999),
        ],
    )
    found = await latencies(
        analytics, MARCH, limit=10, grain=Grain.HOUR, by=[Dimension.TIER], only={Dimension.TENANT: "acme"}
    )
    assert [(each.bucket_ms, each.of[Dimension.TIER], each.events) for each in found] == [
        (MARCH_MS, "premium", 1),
        (MARCH_MS, "standard", 1),
        (MARCH_MS + HOUR_MS, "standard", 1),
    ]
    assert same(found[2].latencies.ttft_ms, 30)
    assert len(await latencies(analytics, MARCH, limit=2, grain=Grain.HOUR, by=[Dimension.TIER])) == 2


async def test_nothing_is_no_point(analytics: Analytics) -> None:
    await store(analytics, [event(1, MARCH_MS - DAY_MS)])
    assert await latencies(analytics, MARCH, limit=10) == []
    assert await latencies(analytics, MARCH, limit=10, grain=Grain.DAY) == []
