"""Refused requests: the latest, and counts of them over time."""

from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from gateway.analytics import Analytics
from gateway.analytics.refusals import (
    RefusalCursor,
    RefusalDimension,
    StoredRefusal,
    latest_refusals,
    refusal_series,
)
from gateway.analytics.sums import Grain, TimeRange
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.http.errors import invalid
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import DEFAULT_PAGE, PAGE_QUERY, Cursors, described, page_of
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import (
    Choice,
    Instant,
    Integer,
    Kind,
    ListOf,
    Member,
    Text,
    answer,
    nullable,
    optional,
)
from gateway.management.operations.timestamps import instant
from gateway.management.operations.usage import MAX_BUCKETS, MAX_POINTS, WINDOW_QUERY, window_of
from gateway.management.operations.wire import KEY_ID, MODEL_NAME, TENANT_ID
from gateway.telemetry.outcomes import RequestOutcome

OUTCOMES = (RequestOutcome.REFUSED, RequestOutcome.TURNED_AWAY, RequestOutcome.FAILED)

_COUNT = Integer(0, 2**63 - 1)
_NAME = Text(255, 0)

_REFUSAL_MEMBERS: dict[str, Member | Kind] = {
    "refusal_id": Text(36),
    "occurred_at": Member(Instant(), "Time of the last of these requests."),
    "requests": Member(_COUNT, "Equal refusals of one gateway within one minute."),
    "tenant_id": Member(_NAME, "Empty: no key of a tenant was presented."),
    "key_id": _NAME,
    "tier": _NAME,
    "model": Member(_NAME, "The name in the request; empty if its body was not read."),
    "endpoint": _NAME,
    "outcome": Member(Choice(OUTCOMES), "`turned_away`: by a limit or by load; `failed`: by a fault of the gateway."),
    "status": Member(Integer(100, 599), "HTTP status."),
    "code": Member(_NAME, "Error code."),
    "limit_name": Member(_NAME, "Scope and name of the limit, such as `tenant.requests_per_minute`; empty: no limit."),
    "request_id": Member(_NAME, "Id of the last of these requests."),
    "source": Member(_NAME, "The gateway, by the id of its journal."),
}
REFUSAL = answer("Refusal", _REFUSAL_MEMBERS)

REFUSAL_FILTERS: Mapping[str, Member] = {
    "tenant_id": optional(TENANT_ID),
    "key_id": optional(KEY_ID),
    "tier": optional(Text(64)),
    "model": optional(MODEL_NAME),
    "endpoint": optional(Text(128)),
    "outcome": optional(Choice(OUTCOMES)),
    "code": optional(Text(64)),
    "limit_name": optional(Text(128)),
}
"""By the columns of the store."""
LIST_QUERY: Mapping[str, Member] = {**PAGE_QUERY, **WINDOW_QUERY, **REFUSAL_FILTERS}

REFUSED_BY = {
    "tenant": RefusalDimension.TENANT,
    "key": RefusalDimension.KEY,
    "tier": RefusalDimension.TIER,
    "model": RefusalDimension.MODEL,
    "endpoint": RefusalDimension.ENDPOINT,
    "outcome": RefusalDimension.OUTCOME,
    "code": RefusalDimension.CODE,
    "limit": RefusalDimension.LIMIT,
}
"""Words of the API to group by."""

REFUSAL_POINT_MEMBERS: dict[str, Member | Kind] = {
    "start": Instant(),
    **{word: nullable(_NAME, "Null: not grouped by it.") for word in REFUSED_BY},
    "requests": _COUNT,
}
SUMMARY = answer(
    "RefusalSummary",
    {
        "start": Instant(),
        "end": Instant(),
        "bucket": Choice(tuple(Grain)),
        "data": ListOf(answer("RefusalPoint", REFUSAL_POINT_MEMBERS), MAX_POINTS),
    },
)


def summary_query(words: Collection[str] = tuple(REFUSED_BY)) -> Mapping[str, Member]:
    return {
        **WINDOW_QUERY,
        "bucket": optional(Choice(tuple(Grain)), "hour by default."),
        "by": optional(ListOf(Choice(tuple(words)), len(words)), "Dimensions to group by, separated by commas."),
    }


async def refusals_answer(
    analytics: Analytics,
    cursors: Cursors,
    query: Mapping[str, Any],
    only: Mapping[RefusalDimension, str],
    now: datetime,
) -> dict[str, Any]:
    """A page of the refusals of a window, newest first. A page after the first is of the same window, though its end
    was `now`.

    Raises:
        APIError: 400 naming `start` or `cursor`.
    """
    listing = described("refusals", query)
    after, until = None, now
    if query["cursor"] is not None:
        at_ms, refusal_id, until_ms = cursors.read(listing, query["cursor"])
        after, until = RefusalCursor(at_ms, UUID(refusal_id)), utc_from_ms(until_ms)
    start, end = window_of(query, until)
    page = await latest_refusals(
        analytics,
        TimeRange(unix_ms(start), unix_ms(end)),
        only=only,
        after=after,
        limit=query["limit"] or DEFAULT_PAGE,
    )
    following = None
    if page.next is not None:
        position = [page.next.occurred_at_ms, str(page.next.refusal_id), unix_ms(end)]
        following = cursors.write(listing, position)
    return {"data": [_wire(refusal) for refusal in page.refusals], "next_cursor": following}


async def summary_answer(
    analytics: Analytics, query: Mapping[str, Any], only: Mapping[RefusalDimension, str], now: datetime
) -> dict[str, Any]:
    """Refused requests in whole buckets of a window.

    Raises:
        APIError: 400 naming `start`, `bucket` or `by`.
    """
    start, end = window_of(query, now)
    grain = Grain(query["bucket"] or Grain.HOUR)
    window = TimeRange(unix_ms(start), unix_ms(end)).widened_to(grain.length_ms)
    if (window.end_ms - window.start_ms) // grain.length_ms > MAX_BUCKETS:
        raise invalid("bucket", f"At most {MAX_BUCKETS} buckets: choose a longer bucket or a shorter time.")
    by = {word: REFUSED_BY[word] for word in query["by"] or ()}
    points = await refusal_series(analytics, grain, window, by=by.values(), only=only, limit=MAX_POINTS + 1)
    if len(points) > MAX_POINTS:
        raise invalid("by", f"More than {MAX_POINTS} points. Filter, or group by less.")
    return {
        "start": instant(utc_from_ms(window.start_ms)),
        "end": instant(utc_from_ms(window.end_ms)),
        "bucket": grain.value,
        "data": [
            {
                "start": instant(utc_from_ms(point.bucket_ms)),
                **{word: point.of.get(dimension) for word, dimension in REFUSED_BY.items()},
                "requests": point.requests,
            }
            for point in points
        ],
    }


def refusals_only(query: Mapping[str, Any]) -> dict[RefusalDimension, str]:
    """The filters that a query states."""
    return {RefusalDimension(name): str(query[name]) for name in REFUSAL_FILTERS if query.get(name) is not None}


ROUTES = Routes()


@ROUTES.get("/refusals", READERS, page_of("RefusalPage", REFUSAL), query=LIST_QUERY)
async def list_refusals(context: AdminContext, call: OperationInput) -> Any:
    """List refused requests, newest first; equal ones of a minute are one item. They are available within a minute."""
    only = refusals_only(call.query)
    return await refusals_answer(context.analytics, context.cursors, call.query, only, context.now())


@ROUTES.get("/refusals/summary", READERS, SUMMARY, query={**summary_query(), **REFUSAL_FILTERS})
async def read_refusals(context: AdminContext, call: OperationInput) -> Any:
    """Count refused requests over time, grouped by tenant, key, class, model, endpoint, outcome, code or limit."""
    return await summary_answer(context.analytics, call.query, refusals_only(call.query), context.now())


def _wire(refusal: StoredRefusal) -> dict[str, Any]:
    return asdict(refusal) | {"refusal_id": str(refusal.refusal_id), "occurred_at": instant(refusal.occurred_at)}
