"""Queries of refusals return each refusal once, in its tenant and bucket."""

import pytest

from gateway.analytics import Analytics
from gateway.analytics.refusals import (
    REFUSAL_COLUMNS,
    OutcomeCounts,
    RefusalCount,
    RefusalCursor,
    RefusalDimension,
    RefusalPoint,
    RefusedTenant,
    StoredRefusal,
    count_refusals,
    latest_refusals,
    outcomes,
    refusal_series,
    refused_tenants,
)
from gateway.analytics.sums import Grain, TimeRange
from tests.support.refusal_samples import TODAY, TODAY_MS, refusal, store_refusals
from tests.support.usage_samples import DAY_MS, HOUR_MS, event, store

TENANT, CODE, LIMIT, MODEL = (
    RefusalDimension.TENANT,
    RefusalDimension.CODE,
    RefusalDimension.LIMIT,
    RefusalDimension.MODEL,
)
INVALID = {"outcome": "refused", "status": 400, "code": "invalid_value", "limit_name": ""}
FAILED = {"outcome": "failed", "status": 503, "code": "service_unavailable", "limit_name": ""}


async def test_a_refusal_has_the_columns_of_its_table(analytics: Analytics) -> None:
    described = await analytics.query(
        "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = 'refusals' ORDER BY position"
    )
    assert [name for (name,) in described] == list(REFUSAL_COLUMNS)


async def test_a_row_is_read_as_it_was_stored(analytics: Analytics) -> None:
    stored = refusal(1, TODAY_MS + 123, model="it's\t\\ \N{SNOWMAN}", requests=2**40)
    await store_refusals(analytics, [stored])
    page = await latest_refusals(analytics, TODAY)
    assert page.refusals == (stored,)
    assert page.next is None


async def test_copies_count_once_before_and_after_merges(analytics: Analytics) -> None:
    rows = [refusal(1, requests=5), refusal(2, TODAY_MS + HOUR_MS, requests=7)]
    for _ in range(3):
        await store_refusals(analytics, rows)
    for _ in range(2):
        assert [each.requests for each in await count_refusals(analytics, TODAY, by=[TENANT])] == [12]
        assert sum(each.requests for each in await refusal_series(analytics, Grain.HOUR, TODAY)) == 12
        assert len((await latest_refusals(analytics, TODAY)).refusals) == 2
        assert [each.refused for each in await outcomes(analytics, Grain.DAY, TODAY)] == [12]
        assert [each.requests for each in await refused_tenants(analytics, TODAY)] == [12]
        await analytics.command("OPTIMIZE TABLE refusals FINAL")


async def test_pages_hold_each_row_once_with_the_newest_first(analytics: Analytics) -> None:
    await store_refusals(analytics, [refusal(number, TODAY_MS + number // 4) for number in range(1, 24)])
    seen: list[StoredRefusal] = []
    after: RefusalCursor | None = None
    while True:
        page = await latest_refusals(analytics, TODAY, after=after, limit=5)
        seen += page.refusals
        if page.next is None:
            break
        after = page.next
        await store_refusals(analytics, [refusal(1000 + len(seen), TODAY_MS + HOUR_MS)])
    assert [each.refusal_id.int for each in seen] == list(range(23, 0, -1))


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_is_bounded(analytics: Analytics, limit: int) -> None:
    with pytest.raises(ValueError, match="page"):
        await latest_refusals(analytics, TODAY, limit=limit)


async def test_rows_are_found_by_tenant_key_model_code_and_time(analytics: Analytics) -> None:
    await store_refusals(
        analytics,
        [
            refusal(1),
            refusal(2, tenant_id="zeta"),
            refusal(3, key_id="key_2"),
            refusal(4, model="small"),
            refusal(5, **INVALID),
            refusal(6, TODAY.end_ms),
            refusal(7, TODAY.start_ms - 1),
        ],
    )

    async def found(only: dict[RefusalDimension, str], window: TimeRange = TODAY) -> list[int]:
        return sorted(each.refusal_id.int for each in (await latest_refusals(analytics, window, only=only)).refusals)

    assert await found({}) == [1, 2, 3, 4, 5]
    assert await found({TENANT: "zeta"}) == [2]
    assert await found({RefusalDimension.KEY: "key_2"}) == [3]
    assert await found({MODEL: "small"}) == [4]
    assert await found({CODE: "invalid_value", TENANT: "acme"}) == [5]
    assert await found({CODE: "invalid_value", TENANT: "zeta"}) == []
    assert await found({TENANT: "'; DROP TABLE refusals"}) == []
    assert await found({}, TimeRange(TODAY.end_ms, TODAY.end_ms + 1)) == [6]


async def test_counts_are_of_groups_with_the_largest_first(analytics: Analytics) -> None:
    last_ms = TODAY_MS + HOUR_MS
    await store_refusals(
        analytics,
        [refusal(1, requests=3), refusal(2, last_ms, requests=4), refusal(3, tenant_id="zeta", requests=9, **INVALID)],
    )
    assert await count_refusals(analytics, TODAY, by=[CODE, TENANT, LIMIT]) == [
        RefusalCount({TENANT: "zeta", CODE: "invalid_value", LIMIT: ""}, 9, TODAY_MS),
        RefusalCount({TENANT: "acme", CODE: "rate_limit_exceeded", LIMIT: "tenant.requests_per_minute"}, 7, last_ms),
    ]
    assert await count_refusals(analytics, TODAY, by=[]) == [RefusalCount({}, 16, last_ms)]
    assert [each.requests for each in await count_refusals(analytics, TODAY, by=[TENANT], limit=1)] == [9]
    assert await count_refusals(analytics, TimeRange(0, 1), by=[]) == []


async def test_series_are_by_bucket_and_by_what_is_asked_for(analytics: Analytics) -> None:
    await store_refusals(
        analytics,
        [
            refusal(1),
            refusal(2, TODAY_MS + 59_999, requests=2),
            refusal(3, TODAY_MS + 60_000),
            refusal(4, TODAY_MS + HOUR_MS, **INVALID),
        ],
    )

    async def counts(grain: Grain) -> list[tuple[int, int]]:
        return [(each.bucket_ms - TODAY_MS, each.requests) for each in await refusal_series(analytics, grain, TODAY)]

    assert await counts(Grain.MINUTE) == [(0, 3), (60_000, 1), (HOUR_MS, 1)]
    assert await counts(Grain.HOUR) == [(0, 4), (HOUR_MS, 1)]
    assert await counts(Grain.DAY) == [(0, 5)]
    assert await refusal_series(analytics, Grain.HOUR, TODAY, by=[CODE], only={CODE: "invalid_value"}) == [
        RefusalPoint(TODAY_MS + HOUR_MS, {CODE: "invalid_value"}, 1)
    ]


async def test_each_request_has_one_outcome(analytics: Analytics) -> None:
    reasons = ["stop", "length", "tool_calls", "quota", "cancelled", "error", "interrupted"]
    await store(
        analytics, [event(number, TODAY_MS, finish_reason=reason) for number, reason in enumerate(reasons, start=1)]
    )
    await store(analytics, [event(20, TODAY_MS + HOUR_MS, tenant_id="zeta")])
    await store_refusals(
        analytics,
        [
            refusal(1, requests=10),
            refusal(2, requests=3, **INVALID),
            refusal(3, requests=5, **FAILED),
            refusal(4, TODAY_MS + 2 * HOUR_MS, tenant_id="", key_id="", requests=100, **INVALID),
        ],
    )
    first = OutcomeCounts(TODAY_MS, served=4, refused=13, failed=7, cancelled=1)
    assert await outcomes(analytics, Grain.HOUR, TODAY) == [
        first,
        OutcomeCounts(TODAY_MS + HOUR_MS, 1, 0, 0, 0),
        OutcomeCounts(TODAY_MS + 2 * HOUR_MS, 0, 100, 0, 0),
    ]
    assert await outcomes(analytics, Grain.HOUR, TODAY, tenant_id="acme") == [first]
    assert await outcomes(analytics, Grain.HOUR, TimeRange(0, 1)) == []


async def test_refused_tenants_are_told_with_their_most_frequent_code(analytics: Analytics) -> None:
    last_ms = TODAY_MS + 5
    await store_refusals(
        analytics,
        [
            refusal(1, requests=4),
            refusal(2, last_ms, requests=3, key_id="key_2"),
            refusal(3, requests=5, **INVALID),
            refusal(4, tenant_id="zeta", requests=1, **INVALID),
            refusal(5, tenant_id="", key_id="", requests=1000, **INVALID),
            refusal(6, tenant_id="unlucky", requests=1000, **FAILED),
        ],
    )
    acme = RefusedTenant("acme", 12, last_ms, "rate_limit_exceeded", "tenant.requests_per_minute", 7)
    assert await refused_tenants(analytics, TODAY) == [acme, RefusedTenant("zeta", 1, TODAY_MS, "invalid_value", "", 1)]
    assert await refused_tenants(analytics, TODAY, limit=1) == [acme]


async def test_rows_expire_after_ninety_days(analytics: Analytics) -> None:
    """Merges drop what has expired, and nothing else."""
    await store_refusals(analytics, [refusal(1, TODAY_MS - 100 * DAY_MS), refusal(2, TODAY_MS - 80 * DAY_MS)])
    await analytics.command("OPTIMIZE TABLE refusals FINAL")
    page = await latest_refusals(analytics, TimeRange(0, TODAY.end_ms))
    assert [each.refusal_id.int for each in page.refusals] == [2]
