"""Requests, one by one: what each consumed, what it cost, and where its time went."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from gateway.analytics import Analytics
from gateway.analytics.sums import Dimension, TimeRange
from gateway.analytics.usage import EventCursor, Mark, events
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.http.errors import APIError
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import DEFAULT_PAGE, PAGE_QUERY, Cursors, described, page_of
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import (
    Boolean,
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
from gateway.management.operations.usage import FILTERS, WINDOW_QUERY, only_of, window_of
from gateway.management.operations.wire import TENANT_ID, money, money_members
from gateway.metering.event import Ending

RECENT = timedelta(days=7)
"""The time range in which a request is looked up if the query does not state one."""
NEARBY = timedelta(hours=1)

_AMOUNT = Integer(0, 2**63 - 1)
_MAX_CLASSES = 64
HTTP_STATUS = Integer(100, 599)
_RECOMPUTED = answer("Recomputed", {"tier": Text(255, 0), "engine_ns": _AMOUNT})

_REQUEST_MEMBERS: dict[str, Member | Kind] = {
    "event_id": Text(36),
    "request_id": Member(Text(255, 0), "The `id` in the answer's body."),
    "http_request_id": Member(Text(255, 0), "The `x-request-id` header; empty for events before version 4."),
    "occurred_at": Member(Instant(), "End of the request."),
    "tenant_id": Text(255, 0),
    "key_id": Text(255, 0),
    "tier": Text(255, 0),
    "tier_served": Text(255, 0),
    "requested_model": Text(255, 0),
    "routed_model": Text(255, 0),
    "model": Text(255, 0),
    "route_reason": Text(32, 0),
    "endpoint": Member(Text(255, 0), "Path of the HTTP request; empty for events before version 4."),
    "streamed": Boolean(),
    "http_status": nullable(
        HTTP_STATUS,
        "Status of the response; 499: the client disconnected before it started; null: unknown, as after a crash and "
        "for events before version 5. A stream that fails keeps the status with which it started.",
    ),
    "finish_reason": Text(32),
    "prompt_tokens": _AMOUNT,
    "cached_tokens": _AMOUNT,
    "completion_tokens": _AMOUNT,
    "estimated": Member(
        Boolean(), "Whether these counts are an estimate: the model's server reported none. Known since version 6."
    ),
    "undelivered_tokens": _AMOUNT,
    "draft_tokens": _AMOUNT,
    "accepted_draft_tokens": _AMOUNT,
    "ttft_ms": nullable(_AMOUNT),
    "total_latency_ms": _AMOUNT,
    "queue_ms": _AMOUNT,
    "paused_ms": Member(_AMOUNT, "Time for which it was paused because its client did not read."),
    "engine_ns": _AMOUNT,
    "preemptions": _AMOUNT,
    "price_version": Text(255, 0),
}
REQUEST = answer("Request", _REQUEST_MEMBERS | money_members("cost"))

_REST_MEMBERS: dict[str, Member | Kind] = {
    "source": Member(Text(255, 0), "The journal that wrote its usage event."),
    "sequence": Member(_AMOUNT, "Sequence number in that journal."),
    "schema_version": _AMOUNT,
    "model_version": Text(255, 0),
    "adapter_id": Text(255, 0),
    "recomputed": Member(
        ListOf(_RECOMPUTED, _MAX_CLASSES), "Engine time repeated after preemptions, by the class that caused it."
    ),
}
REQUEST_DETAIL = answer("RequestDetail", _REQUEST_MEMBERS | money_members("cost") | _REST_MEMBERS)

REQUEST_FILTERS: Mapping[str, Member] = {
    **FILTERS,
    "finish_reason": optional(Choice(tuple(Ending))),
    "http_status": optional(HTTP_STATUS),
    "adapter_id": optional(Text(255), "Of the tenant's adapter that answered."),
    "request_id": optional(
        Text(255, 1, pattern="[A-Za-z0-9._:/+=-]+"), "The `id` in the answer's body, or the `x-request-id` header."
    ),
}
LIST_QUERY: Mapping[str, Member] = {**PAGE_QUERY, **WINDOW_QUERY, **REQUEST_FILTERS}
ONE_QUERY: Mapping[str, Member] = {
    "tenant_id": optional(TENANT_ID, "Whose it must be."),
    "near": optional(
        Instant(), f"About when it ended, to within an hour. By default the last {RECENT.days} days are searched."
    ),
}


async def requests_answer(
    analytics: Analytics, cursors: Cursors, query: Mapping[str, Any], only: Mapping[Dimension, str], now: datetime
) -> dict[str, Any]:
    """A page of the requests of a window, the newest first. A page after the first is of the same window, though its
    end was `now`.

    Raises:
        APIError: 400 naming what is wrong with the window or the cursor.
    """
    listing = described("requests", query)
    after, until = None, now
    if query["cursor"] is not None:
        at_ms, event_id, until_ms = cursors.read(listing, query["cursor"])
        after, until = EventCursor(at_ms, UUID(event_id)), utc_from_ms(until_ms)
    start, end = window_of(query, until)
    names = (Mark.FINISH_REASON, Mark.HTTP_STATUS, Mark.ADAPTER)
    marks = {mark: query[mark.value] for mark in names}
    page = await events(
        analytics,
        TimeRange(unix_ms(start), unix_ms(end)),
        only=only,
        marked={mark: value for mark, value in marks.items() if value is not None},
        either_id=query["request_id"],
        after=after,
        newest_first=True,
        limit=query["limit"] or DEFAULT_PAGE,
    )
    return {
        "data": [_request(event) for event in page.events],
        "next_cursor": None if page.next is None else _next(cursors, listing, page.next, end),
    }


async def request_answer(
    analytics: Analytics, request_id: str, near: datetime | None, only: Mapping[Dimension, str], now: datetime
) -> dict[str, Any]:
    """All of one request, by the id in its body, or else by its `x-request-id`; of several with that one, the newest.

    Raises:
        APIError: 404, none of `only` these, where it was looked for.
    """
    start, end = (now - RECENT, now) if near is None else (near - NEARBY, near + NEARBY)
    window = TimeRange(unix_ms(start), unix_ms(end) + 1)
    for mark in (Mark.REQUEST, Mark.HTTP_REQUEST):
        page = await events(analytics, window, only=only, marked={mark: request_id}, newest_first=True, limit=1)
        if page.events:
            return _detail(page.events[0])
    raise APIError(404, "No usage of this request, or not yet available.", code="request_not_found")


ROUTES = Routes()


@ROUTES.get("/requests", READERS, page_of("RequestPage", REQUEST), query=LIST_QUERY)
async def list_requests(context: AdminContext, call: OperationInput) -> Any:
    """List requests, newest first."""
    return await requests_answer(context.analytics, context.cursors, call.query, only_of(call.query), context.now())


@ROUTES.get("/requests/{request_id}", READERS, REQUEST_DETAIL, query=ONE_QUERY)
async def read_request(context: AdminContext, call: OperationInput) -> Any:
    """Read the details of a request. They are available a few seconds after its end."""
    return await request_answer(
        context.analytics, call.path["request_id"], call.query["near"], only_of(call.query), context.now()
    )


def _next(cursors: Cursors, listing: str, cursor: EventCursor, end: datetime) -> str:
    return cursors.write(listing, [cursor.occurred_at_ms, str(cursor.event_id), unix_ms(end)])


def _request(event: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: event[name] for name in _REQUEST_MEMBERS if name in event}
    return said | {
        "event_id": str(event["event_id"]),
        "occurred_at": instant(event["occurred_at"]),
        "model": event["served_model"],
        "http_status": event["http_status"] or None,
        "finish_reason": str(event["finish_reason"]),
        **money("cost", event["cost_nanodollars"]),
    }


def _detail(event: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: event[name] for name in _REST_MEMBERS if name in event}
    recomputed = [{"tier": tier, "engine_ns": ns} for tier, ns in sorted(event["recompute_ns"].items())]
    return _request(event) | rest | {"recomputed": recomputed}
