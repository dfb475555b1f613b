"""Queries of usage: totals for bills, series for dashboards, and pages of events.

Totals and events are read from the events, each counted once. Series are read from the rollups of the views, and are
only as correct as those: see `rollups`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from gateway.analytics.store import Analytics, Parameters
from gateway.analytics.sums import (
    DISTINCT_EVENTS,
    DURING,
    PARTITIONWISE,
    SUMS_OF_EVENTS,
    SUMS_OF_ROLLUP,
    Dimension,
    Grain,
    Sums,
    TimeRange,
    instant,
)

EVENT_COLUMNS = (
    "event_id",
    "source",
    "sequence",
    "schema_version",
    "request_id",
    "http_request_id",
    "endpoint",
    "streamed",
    "http_status",
    "tenant_id",
    "key_id",
    "tier",
    "tier_served",
    "requested_model",
    "routed_model",
    "served_model",
    "model_version",
    "route_reason",
    "adapter_id",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "estimated",
    "undelivered_tokens",
    "draft_tokens",
    "accepted_draft_tokens",
    "ttft_ms",
    "total_latency_ms",
    "queue_ms",
    "paused_ms",
    "engine_ns",
    "recompute_ns",
    "preemptions",
    "finish_reason",
    "price_version",
    "cost_nanodollars",
    "occurred_at",
)
MAX_PAGE_EVENTS = 1000


class Mark(StrEnum):
    """Further columns that events can be found by. The rollups do not have them."""

    REQUEST = "request_id"
    HTTP_REQUEST = "http_request_id"
    FINISH_REASON = "finish_reason"
    HTTP_STATUS = "http_status"
    ADAPTER = "adapter_id"


@dataclass(frozen=True, slots=True)
class Total:
    """A line of a bill: usage at one price."""

    tenant_id: str
    key_id: str
    served_model: str
    tier: str
    price_version: str
    sums: Sums


async def totals(analytics: Analytics, window: TimeRange, *, tenant_id: str | None = None) -> list[Total]:
    """Usage in a window, from the distinct events. `tenant_id`: only this tenant; None: all. Ordered."""
    condition, parameters = _of_tenant(DURING, window.parameters, tenant_id)
    rows = await analytics.query(
        f"""
        SELECT tenant_id, key_id, served_model, tier, price_version, {SUMS_OF_EVENTS}
        FROM {DISTINCT_EVENTS} WHERE {condition}
        GROUP BY tenant_id, key_id, served_model, tier, price_version
        ORDER BY tenant_id, key_id, served_model, tier, price_version
        {PARTITIONWISE}
        """,
        parameters,
    )
    return [
        Total(tenant_id, key_id, model, tier, price_version, Sums.of(amounts))
        for tenant_id, key_id, model, tier, price_version, *amounts in rows
    ]


@dataclass(frozen=True, slots=True)
class Point:
    """One bucket of a series: usage from `bucket_ms` on, for these values of the requested dimensions."""

    bucket_ms: int
    of: Mapping[Dimension, str]
    sums: Sums


async def series(
    analytics: Analytics,
    grain: Grain,
    window: TimeRange,
    *,
    by: Collection[Dimension] = (),
    only: Mapping[Dimension, str] | None = None,
) -> list[Point]:
    """Usage in each bucket that starts in the window, ordered by time. `by`: dimensions to group by. `only`: values to
    filter by. Buckets without usage are left out."""
    dimensions = [dimension for dimension in Dimension if dimension in by]
    names = ["bucket", *(dimension.value for dimension in dimensions)]
    only = only or {}
    conditions = [f"bucket >= {instant('start_ms')}", f"bucket < {instant('end_ms')}"]
    conditions += [f"{dimension.value} = {{{dimension.value}:String}}" for dimension in only]
    rows = await analytics.query(
        f"""
        SELECT toUnixTimestamp(bucket) * 1000 AS bucket_ms, {"".join(f"{name}, " for name in names[1:])}{SUMS_OF_ROLLUP}
        FROM {grain.table} AS rollup WHERE {" AND ".join(conditions)}
        GROUP BY {", ".join(names)} HAVING events != 0 ORDER BY {", ".join(names)}
        """,
        {**window.parameters, **{dimension.value: value for dimension, value in only.items()}},
    )
    end = 1 + len(dimensions)
    return [Point(row[0], dict(zip(dimensions, row[1:end], strict=True)), Sums.of(row[end:])) for row in rows]


async def busiest_tenants(analytics: Analytics, window: TimeRange, *, limit: int) -> list[str]:
    """The tenants with most requests in the hours that start in the window: at most `limit`, the first has most."""
    rows = await analytics.query(
        f"""
        SELECT tenant_id FROM {Grain.HOUR.table} AS rollup
        WHERE bucket >= {instant("start_ms")} AND bucket < {instant("end_ms")}
        GROUP BY tenant_id HAVING sum(rollup.events) > 0
        ORDER BY sum(rollup.events) DESC, tenant_id LIMIT {{limit:UInt32}}
        """,
        {**window.parameters, "limit": limit},
    )
    return [tenant_id for (tenant_id,) in rows]


@dataclass(frozen=True, slots=True)
class EventCursor:
    """Position after a page."""

    occurred_at_ms: int
    event_id: UUID


@dataclass(frozen=True, slots=True)
class EventPage:
    """A page of events, as rows by column name. `next`: start of the next page; None: this is the last one."""

    events: tuple[Mapping[str, Any], ...]
    next: EventCursor | None


async def events(
    analytics: Analytics,
    window: TimeRange,
    *,
    only: Mapping[Dimension, str] | None = None,
    marked: Mapping[Mark, str | int] | None = None,
    either_id: str | None = None,
    after: EventCursor | None = None,
    newest_first: bool = False,
    limit: int = 100,
) -> EventPage:
    """One page of the distinct events that match `only` and `marked`, and that have `either_id` as their `request_id`
    or `http_request_id`. An event that exists throughout is on exactly one page, whatever is inserted between the
    pages.

    `limit`: 1 to `MAX_PAGE_EVENTS`. Copies of an event have the same request id, so the index on requests is applied
    before de-duplication.
    """
    if not 1 <= limit <= MAX_PAGE_EVENTS:
        raise ValueError(f"a page has 1 to {MAX_PAGE_EVENTS} events, not {limit}")
    wanted = {column.value: value for column, value in (*(only or {}).items(), *(marked or {}).items())}
    kinds = {name: "UInt16" if isinstance(value, int) else "String" for name, value in wanted.items()}
    condition = " AND ".join((DURING, *(f"{name} = {{{name}:{kind}}}" for name, kind in kinds.items())))
    parameters: Parameters = {**window.parameters, **wanted}
    if either_id is not None:
        condition += " AND (request_id = {either_id:String} OR http_request_id = {either_id:String})"
        parameters = {**parameters, "either_id": either_id}
    if after is not None:
        beyond = "<" if newest_first else ">"
        # The first comparison is implied by the second; it lets ClickHouse skip parts and granules.
        condition += f" AND occurred_at {beyond}= {instant('after_ms')}"
        condition += f" AND (occurred_at, event_id) {beyond} ({instant('after_ms')}, {{after_id:UUID}})"
        parameters = {**parameters, "after_ms": after.occurred_at_ms, "after_id": after.event_id}
    order = "DESC" if newest_first else "ASC"
    rows = await analytics.query(
        f"""
        SELECT toUnixTimestamp64Milli(occurred_at), {", ".join(EVENT_COLUMNS)}
        FROM {DISTINCT_EVENTS} WHERE {condition}
        ORDER BY occurred_at {order}, event_id {order} LIMIT {{limit:UInt32}}
        {PARTITIONWISE}, use_skip_indexes_if_final = 1
        """,
        {**parameters, "limit": limit + 1},
    )
    page = tuple(dict(zip(EVENT_COLUMNS, row[1:], strict=True)) for row in rows[:limit])
    more = len(rows) > limit
    return EventPage(page, EventCursor(rows[limit - 1][0], page[-1]["event_id"]) if more else None)


def _of_tenant(condition: str, parameters: Parameters, tenant_id: str | None) -> tuple[str, Parameters]:
    if tenant_id is None:
        return condition, parameters
    return f"{condition} AND tenant_id = {{tenant_id:String}}", {**parameters, "tenant_id": tenant_id}
