"""Requests: the latest or those that are looked for, and all that is known of one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from gateway.billing.errors import NoPrice
from gateway.billing.prices import Price, split_version
from gateway.http.errors import APIError
from gateway.management.console.addresses import address, next_page
from gateway.management.console.charts import Chart, shares
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import (
    reading,
    shown_again,
    span_options,
    typed_fields,
    window_query,
)
from gateway.management.console.formatting import duration, money, percent
from gateway.management.console.forms import Form
from gateway.management.console.names import Names, names_of, pickers_of, resolved
from gateway.management.console.request_csv import CSV_COLUMNS, csv_row
from gateway.management.console.screens import Download, Page, PageRequest, Screens
from gateway.management.operations.paging import MAX_PAGE
from gateway.management.operations.requests import RECENT
from gateway.management.operations.roles import READERS
from gateway.management.operations.timestamps import instant
from gateway.metering.event import Ending
from gateway.spreadsheet import csv_text

DEFAULT_SPAN = "day"
ID_SPAN = "quarter"
"""The window of a search by id that states none."""
FILTERS = ("tenant_id", "key_id", "model", "tier", "finish_reason", "http_status", "adapter_id", "request_id")
EVERY_S = 15

_ASKED = ("window", "start", "end", *FILTERS)
_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Charge:
    """A line of a request's cost: a number of tokens and the nanodollars of each."""

    kind: str
    tokens: int
    each: int

    @property
    def nanodollars(self) -> int:
        return self.tokens * self.each


SCREENS = Screens()


@SCREENS.get("/requests", "requests", "Requests", READERS, section="Observe", tenants=True)
async def listing(context: ConsoleContext, page_request: PageRequest) -> Page:
    query = page_request.query
    values: dict[str, Any] = {
        "typed": typed_fields(query, *_ASKED),
        "spans": span_options(),
        "default_span": _default_span(query),
        "endings": [(each.value, each.value) for each in Ending],
        "everyone": page_request.tenant is None,
        "duration": duration,
        "address_of": request_address,
        "csv": address("/requests.csv", query.given(*_ASKED)),
        "filtered": bool(query.given(*FILTERS)),
        "every_s": 0 if query.get("cursor") else EVERY_S,
        "error": None,
        "page": None,
    }
    try:
        # A page after the first is of the same window: its address says when that begins and ends.
        asked = await _asked(context, page_request)
        page = await reading(page_request)("listRequests", query={**asked, **query.given("cursor")})
    except APIError as error:
        if not shown_again(error):
            raise
        pickers = await pickers_of(context, page_request, {})
        return Page("requests.html", values | {"error": error, "pickers": pickers, "names": Names()}, 400)
    values |= {
        "page": page,
        "further": next_page("/requests", asked, page["next_cursor"]),
        "window": asked,
        "pickers": await pickers_of(context, page_request, asked),
        "names": await _names(context, page_request, page["data"]),
    }
    return Page("requests.html", values)


@SCREENS.get("/requests.csv", "requests-csv", "Requests as CSV", READERS, tenants=True)
async def as_csv(context: ConsoleContext, page_request: PageRequest) -> Download:
    """Every request of the window, page by page while the client reads."""
    asked = await _asked(context, page_request)
    read = reading(page_request)
    first = await read("listRequests", query={**asked, "limit": str(MAX_PAGE)})

    async def parts() -> AsyncIterator[bytes]:
        page, head = first, True
        while True:
            names = await _names(context, page_request, page["data"])
            yield csv_text(CSV_COLUMNS, [csv_row(each, names) for each in page["data"]], head=head).encode()
            if page["next_cursor"] is None:
                return
            head = False
            page = await read("listRequests", query={**asked, "limit": str(MAX_PAGE), "cursor": page["next_cursor"]})

    return Download(parts(), "text/csv; charset=utf-8", "requests.csv")


async def _asked(context: ConsoleContext, page_request: PageRequest) -> dict[str, str]:
    """The query of `listRequests`.

    Raises:
        APIError: 400 naming the field.
    """
    query = page_request.query
    filters = await resolved(context, page_request, query.given(*FILTERS))
    return {**window_query(query, context.now(), _default_span(query)), **filters}


def _default_span(query: Form) -> str:
    return ID_SPAN if query.get("request_id") else DEFAULT_SPAN


async def _names(context: ConsoleContext, page_request: PageRequest, requests: Sequence[Mapping[str, Any]]) -> Names:
    tenants, keys = ({each[name] for each in requests} for name in ("tenant_id", "key_id"))
    return await names_of(context, page_request, tenants=tenants, keys=keys)


@SCREENS.get("/requests/{request_id}", "request", "Request", READERS, tenants=True)
async def one(context: ConsoleContext, page_request: PageRequest) -> Page:
    path = {"request_id": page_request.path["request_id"]}
    try:
        request = await reading(page_request)("readRequest", path, page_request.query.given("near"))
    except APIError as error:
        if error.code != "request_not_found":
            raise
        return Page("request_missing.html", {**path, "error": error, "days": RECENT.days}, 404)
    price = _price(context, request)
    ended = datetime.fromisoformat(request["occurred_at"])
    begun = ended - timedelta(milliseconds=request["total_latency_ms"])
    ttft_ms = request["ttft_ms"]
    values = {
        "request": request,
        "names": await _names(context, page_request, [request]),
        "everyone": page_request.tenant is None,
        "times": time_line(request),
        "begun": instant(begun),
        "first": None if ttft_ms is None else instant(begun + timedelta(milliseconds=ttft_ms)),
        "charges": None if price is None else charges_of(request, price),
        "duration": duration,
        "money": money,
        "accepted": percent(request["accepted_draft_tokens"], request["draft_tokens"]),
        "engine_ms": request["engine_ns"] / _NS_PER_MS,
        "recomputed": [(each["tier"], each["engine_ns"] / _NS_PER_MS) for each in request["recomputed"]],
        "invoices": address("/invoices", {"month": request["occurred_at"][:7], **_whose(page_request, request)}),
    }
    return Page("request.html", values)


def _price(context: ConsoleContext, request: dict[str, Any]) -> Price | None:
    """The price at which it was charged: that of its admission. None if the price book no longer has it."""
    begun = datetime.fromisoformat(request["occurred_at"]) - timedelta(milliseconds=request["total_latency_ms"])
    tier, multiplier = request["tier_served"], split_version(request["price_version"])[1]
    try:
        price = context.prices.price_of_adapter(request["adapter_id"], request["model"], multiplier, tier, begun)
    except NoPrice:
        return None
    return price if price.version == request["price_version"] else None


def request_address(request: dict[str, Any]) -> str:
    """The address of a request's page. With its time a request is found at any age."""
    return address(f"/requests/{quote(request['request_id'], safe='')}", {"near": request["occurred_at"]})


def time_line(request: dict[str, Any]) -> Chart:
    """The phases of a request's duration, up to the end of its answer."""
    total_ms, queue_ms, ttft_ms = request["total_latency_ms"], request["queue_ms"], request["ttft_ms"]
    queued_ms = min(queue_ms, total_ms)
    if ttft_ms is None:
        parts = [("queued", queued_ms), ("without a token", total_ms - queued_ms)]
    else:
        first_ms = min(max(ttft_ms, queued_ms), total_ms)
        paused_ms = min(request["paused_ms"], total_ms - first_ms)
        parts = [
            ("queued", queued_ms),
            ("to the first token", first_ms - queued_ms),
            ("answering", total_ms - first_ms - paused_ms),
            ("paused, as its client did not read", paused_ms),
        ]
    return shares("Where the time went", parts, duration)


def charges_of(request: dict[str, Any], price: Price) -> list[Charge]:
    return [
        Charge("Prompt, computed", request["prompt_tokens"] - request["cached_tokens"], price.prompt),
        Charge("Prompt, from the prefix cache", request["cached_tokens"], price.cached_prompt),
        Charge("Completion", request["completion_tokens"], price.completion),
    ]


def _whose(page_request: PageRequest, request: dict[str, Any]) -> dict[str, str]:
    return {} if page_request.tenant is not None else {"tenant_id": request["tenant_id"]}
