"""Queries of refusals: requests that were answered with an error and have no usage record.

A row counts equal refusals of one gateway in one minute, so a window that begins or ends within a minute includes a row
by the time of its last refusal. A row may be stored more than once, and is counted once. Rows are kept for 90 days
(`migrations/clickhouse/0008_refusals.sql`).

Every request of a generating endpoint is counted once among: served, refused, failed and cancelled (`outcomes`). A
request with a usage record is served, failed or cancelled by its finish reason. A request without one is here: refused,
or failed if the gateway was at fault (`RequestOutcome`). A client that disconnects before its usage record is opened is
not counted.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from gateway.analytics.store import Analytics, Parameters
from gateway.analytics.sums import DISTINCT_EVENTS, DURING, PARTITIONWISE, Grain, TimeRange, instant

REFUSALS_TABLE = "refusals"
MAX_PAGE_REFUSALS = 1000

_DISTINCT = f"{REFUSALS_TABLE} FINAL"
_FAILED = "failed"
"""`RequestOutcome.FAILED`: every other outcome in the table is a refusal."""
_REFUSED = f"outcome != '{_FAILED}'"


class RefusalDimension(StrEnum):
    """Columns to filter and group refusals by."""

    TENANT = "tenant_id"
    KEY = "key_id"
    TIER = "tier"
    MODEL = "model"
    ENDPOINT = "endpoint"
    OUTCOME = "outcome"
    CODE = "code"
    LIMIT = "limit_name"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRefusal:
    """A row: `requests` equal refusals of a gateway within one minute. The fields are the columns of the table.

    `source`: id of the gateway's journal. `occurred_at`: time of the last of them, `request_id`: its id. `tenant_id`,
    `key_id`, `tier`: "" where no known key was presented. `model`: as the client named it, at most 128 characters; ""
    where the body was not read. `outcome`: a `RequestOutcome`: refused, turned_away or failed. `limit_name`: scope and
    name of the limit that refused, such as `tenant.requests_per_minute`; "" where none did. `key_id`, `model` and
    `endpoint` are `(other)` in the row of a tenant that has too many different ones in a minute.
    """

    refusal_id: UUID
    source: str
    occurred_at: datetime
    tenant_id: str
    key_id: str
    tier: str
    model: str
    endpoint: str
    outcome: str
    status: int
    code: str
    limit_name: str
    requests: int
    request_id: str


REFUSAL_COLUMNS = tuple(field.name for field in fields(StoredRefusal))


@dataclass(frozen=True, slots=True)
class RefusalCursor:
    """Position after a page."""

    occurred_at_ms: int
    refusal_id: UUID


@dataclass(frozen=True, slots=True)
class RefusalPage:
    """A page of rows, newest first. `next`: start of the next page; None: this is the last one."""

    refusals: tuple[StoredRefusal, ...]
    next: RefusalCursor | None


async def latest_refusals(
    analytics: Analytics,
    window: TimeRange,
    *,
    only: Mapping[RefusalDimension, str] | None = None,
    after: RefusalCursor | None = None,
    limit: int = 100,
) -> RefusalPage:
    """One page of the rows that match `only`, newest first. `limit`: 1 to `MAX_PAGE_REFUSALS` rows.

    Raises:
        ValueError: `limit` is out of range.
    """
    if not 1 <= limit <= MAX_PAGE_REFUSALS:
        raise ValueError(f"a page has 1 to {MAX_PAGE_REFUSALS} refusals, not {limit}")
    condition, parameters = _matching(window, only)
    if after is not None:
        # The first comparison is implied by the second; it lets ClickHouse skip parts and granules.
        condition += f" AND occurred_at <= {instant('after_ms')}"
        condition += f" AND (occurred_at, refusal_id) < ({instant('after_ms')}, {{after_id:UUID}})"
        parameters = {**parameters, "after_ms": after.occurred_at_ms, "after_id": after.refusal_id}
    rows = await analytics.query(
        f"""
        SELECT toUnixTimestamp64Milli(occurred_at), {", ".join(REFUSAL_COLUMNS)}
        FROM {_DISTINCT} WHERE {condition}
        ORDER BY occurred_at DESC, refusal_id DESC LIMIT {{limit:UInt32}}
        {PARTITIONWISE}
        """,
        {**parameters, "limit": limit + 1},
    )
    page = tuple(StoredRefusal(**dict(zip(REFUSAL_COLUMNS, row[1:], strict=True))) for row in rows[:limit])
    more = len(rows) > limit
    return RefusalPage(page, RefusalCursor(rows[limit - 1][0], page[-1].refusal_id) if more else None)


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """`requests` refused for these values of the requested dimensions, the last one at `last_ms` (Unix
    milliseconds)."""

    of: Mapping[RefusalDimension, str]
    requests: int
    last_ms: int


async def count_refusals(
    analytics: Analytics,
    window: TimeRange,
    *,
    by: Collection[RefusalDimension],
    only: Mapping[RefusalDimension, str] | None = None,
    limit: int = MAX_PAGE_REFUSALS,
) -> list[RefusalCount]:
    """Refusals by tenant, by code and limit, or by any other dimensions, failed requests included: at most `limit`
    groups, the largest first. Without dimensions it is one group, or none if nothing was refused."""
    dimensions = _ordered(by)
    condition, parameters = _matching(window, only)
    rows = await analytics.query(
        f"""
        SELECT {"".join(f"{each.value}, " for each in dimensions)}
            sum(refusals.requests) AS refused, max(toUnixTimestamp64Milli(occurred_at))
        FROM {_DISTINCT} WHERE {condition}
        {_grouped(dimensions)} HAVING refused > 0
        ORDER BY {", ".join(["refused DESC", *dimensions])} LIMIT {{limit:UInt32}}
        {PARTITIONWISE}
        """,
        {**parameters, "limit": limit},
    )
    return [RefusalCount(dict(zip(dimensions, row[:-2], strict=True)), int(row[-2]), int(row[-1])) for row in rows]


@dataclass(frozen=True, slots=True)
class RefusalPoint:
    """One bucket of a series: `requests` refused from `bucket_ms` on, for these values of the requested dimensions."""

    bucket_ms: int
    of: Mapping[RefusalDimension, str]
    requests: int


async def refusal_series(
    analytics: Analytics,
    grain: Grain,
    window: TimeRange,
    *,
    by: Collection[RefusalDimension] = (),
    only: Mapping[RefusalDimension, str] | None = None,
    limit: int = 100_000,
) -> list[RefusalPoint]:
    """Refusals in each bucket, ordered by time. `by`: dimensions to group by. `only`: values to filter by. Buckets
    without refusals are left out. At most `limit` points, the earliest."""
    dimensions = _ordered(by)
    condition, parameters = _matching(window, only)
    names = ", ".join(["bucket_ms", *dimensions])
    rows = await analytics.query(
        f"""
        SELECT toUnixTimestamp({grain.start_of}(occurred_at)) * 1000 AS bucket_ms,
            {"".join(f"{each.value}, " for each in dimensions)} sum(refusals.requests)
        FROM {_DISTINCT} WHERE {condition}
        GROUP BY {names} ORDER BY {names} LIMIT {{limit:UInt32}}
        {PARTITIONWISE}
        """,
        {**parameters, "limit": limit},
    )
    return [RefusalPoint(int(row[0]), dict(zip(dimensions, row[1:-1], strict=True)), int(row[-1])) for row in rows]


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    """Requests in the bucket from `bucket_ms` on (Unix milliseconds), each counted once.

    `served`: answered, up to a limit or the end. `refused`: 4xx, 429 and shedding. `failed`: a server error, before or
    during the answer. `cancelled`: the client disconnected.
    """

    bucket_ms: int
    served: int
    refused: int
    failed: int
    cancelled: int


async def outcomes(
    analytics: Analytics, grain: Grain, window: TimeRange, *, tenant_id: str | None = None
) -> list[OutcomeCounts]:
    """Requests served, refused, failed and cancelled in each bucket, ordered by time: for the overview, with
    `Grain.HOUR` and a window of 24 hours. `tenant_id`: only this tenant; None: all, unknown keys included. Buckets
    without requests are left out.

    Usage is read from the distinct events, as the rollups do not distinguish finish reasons.
    """
    condition = DURING if tenant_id is None else f"{DURING} AND tenant_id = {{tenant_id:String}}"
    bucket = f"toUnixTimestamp({grain.start_of}(occurred_at)) * 1000 AS bucket_ms"
    failed, cancelled = "finish_reason IN ('error', 'interrupted')", "finish_reason = 'cancelled'"
    rows = await analytics.query(
        f"""
        SELECT bucket_ms, sum(served), sum(refused), sum(failed), sum(cancelled)
        FROM
        (
            SELECT {bucket}, countIf(NOT ({failed}) AND NOT ({cancelled})) AS served, toUInt64(0) AS refused,
                countIf({failed}) AS failed, countIf({cancelled}) AS cancelled
            FROM {DISTINCT_EVENTS} WHERE {condition} GROUP BY bucket_ms
            UNION ALL
            SELECT {bucket}, toUInt64(0) AS served, sumIf(refusals.requests, {_REFUSED}) AS refused,
                sumIf(refusals.requests, NOT ({_REFUSED})) AS failed, toUInt64(0) AS cancelled
            FROM {_DISTINCT} WHERE {condition} GROUP BY bucket_ms
        )
        GROUP BY bucket_ms ORDER BY bucket_ms
        {PARTITIONWISE}
        """,
        window.parameters | ({} if tenant_id is None else {"tenant_id": tenant_id}),
    )
    return [OutcomeCounts(*map(int, row)) for row in rows]


@dataclass(frozen=True, slots=True)
class RefusedTenant:
    """A tenant with `requests` refused requests, the last one at `last_ms` (Unix milliseconds). `code`: the most
    frequent error code, with `code_requests` of them. `limit_name`: the limit of that code that refused most; "": none.
    """

    tenant_id: str
    requests: int
    last_ms: int
    code: str
    limit_name: str
    code_requests: int


async def refused_tenants(analytics: Analytics, window: TimeRange, *, limit: int = 10) -> list[RefusedTenant]:
    """Tenants that were refused in a window, such as the last hour: at most `limit`, those with most refusals first.
    Requests without a known key have no tenant and are left out, and so are requests that failed."""
    rows = await analytics.query(
        f"""
        SELECT tenant_id, sum(of_code) AS refused, max(last_ms), argMax((code, limit_name, of_code), of_code)
        FROM
        (
            SELECT tenant_id, code, limit_name, sum(refusals.requests) AS of_code,
                max(toUnixTimestamp64Milli(occurred_at)) AS last_ms
            FROM {_DISTINCT} WHERE {DURING} AND tenant_id != '' AND {_REFUSED}
            GROUP BY tenant_id, code, limit_name
        )
        GROUP BY tenant_id ORDER BY refused DESC, tenant_id LIMIT {{limit:UInt32}}
        {PARTITIONWISE}
        """,
        {**window.parameters, "limit": limit},
    )
    return [
        RefusedTenant(tenant_id, int(requests), int(last_ms), code, limit_name, int(of_code))
        for tenant_id, requests, last_ms, (code, limit_name, of_code) in rows
    ]


def _matching(window: TimeRange, only: Mapping[RefusalDimension, str] | None) -> tuple[str, Parameters]:
    """Condition and parameters of a window and of filters."""
    wanted = {dimension.value: value for dimension, value in (only or {}).items()}
    condition = " AND ".join((DURING, *(f"{name} = {{{name}:String}}" for name in wanted)))
    return condition, {**window.parameters, **wanted}


def _ordered(by: Collection[RefusalDimension]) -> list[RefusalDimension]:
    return [dimension for dimension in RefusalDimension if dimension in by]


def _grouped(dimensions: Collection[RefusalDimension]) -> str:
    return f"GROUP BY {', '.join(dimensions)}" if dimensions else ""
