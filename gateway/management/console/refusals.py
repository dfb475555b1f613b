"""The refusals page: refused requests over time by error code, by reason, and the latest of them."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from gateway.analytics.sums import Grain
from gateway.http.errors import APIError
from gateway.management.console.addresses import address, next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import (
    reading,
    shown_again,
    span_of,
    span_options,
    typed_fields,
    window_query,
)
from gateway.management.console.names import names_of, pickers_of, resolved
from gateway.management.console.refusal_figures import Reason, figures_of, reasons_of
from gateway.management.console.screens import Page, PageRequest, Screens
from gateway.management.operations.refusals import OUTCOMES
from gateway.management.operations.roles import READERS
from gateway.telemetry.outcomes import RequestOutcome

MAX_BUCKETS = 400
"""In a chart: more bars cannot be told apart."""
MAX_REASONS = 50
DEFAULT_SPAN = "day"
EVERY_S = 30
FILTERS = ("tenant_id", "key_id", "model", "tier", "code", "outcome", "limit_name")

_ASKED = ("window", "start", "end", *FILTERS)

SCREENS = Screens()


@SCREENS.get("/refusals", "refusals", "Refusals", READERS, section="Observe", tenants=True)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    query = page_request.query
    values: dict[str, Any] = {
        "typed": typed_fields(query, *_ASKED),
        "spans": span_options(),
        "default_span": DEFAULT_SPAN,
        "outcomes": [(each.value, each.value.replace("_", " ")) for each in OUTCOMES],
        "everyone": page_request.tenant is None,
        "filtered": bool(query.given(*FILTERS)),
        "most": MAX_REASONS,
        "reason_address": lambda reason: _narrowed(query.given(*_ASKED), reason),
        "limits_address": lambda refusal: limits_address(page_request, refusal),
        "every_s": 0 if query.get("cursor") else EVERY_S,
        "error": None,
        "figures": None,
    }
    try:
        window = window_query(query, context.now(), DEFAULT_SPAN)
        only = await resolved(context, page_request, query.given(*FILTERS))
        is_typed = bool(query.get("start") or query.get("end"))
        grain = _grain_of(window, context.now()) if is_typed else span_of(query, DEFAULT_SPAN).grain
        asked = {**window, **only, "by": "code,limit,outcome", "bucket": grain.value}
        answer = await reading(page_request)("readRefusals", query=asked)
        listed = await reading(page_request)("listRefusals", query={**window, **only, **query.given("cursor")})
    except APIError as error:
        if not shown_again(error):
            raise
        pickers = await pickers_of(context, page_request, {})
        return Page("refusals.html", values | {"error": error, "pickers": pickers}, 400)
    values |= {
        "answer": answer,
        "figures": figures_of(answer),
        "refusals": listed["data"],
        "pickers": await pickers_of(context, page_request, only),
        "names": await names_of(
            context,
            page_request,
            tenants=[each["tenant_id"] for each in listed["data"]],
            keys=[each["key_id"] for each in listed["data"]],
        ),
    }
    values["further"] = next_page("/refusals", {**window, **only}, listed["next_cursor"])
    return Page("refusals.html", values)


async def reasons_of_tenant(page_request: PageRequest, tenant_id: str) -> tuple[Reason, ...] | None:
    """Why a tenant was refused in the last 24 hours, the most frequent reason first; None while the analytics store
    does not answer, which need not take the rest of a page along."""
    query = {"tenant_id": tenant_id, "by": "code,limit,outcome"}
    try:
        answer = await page_request.actions.read("readRefusals", query=query)
    except APIError as error:
        if error.status != 503:
            raise
        return None
    return reasons_of([point for point in answer["data"] if point["outcome"] != RequestOutcome.FAILED])


def limits_address(page_request: PageRequest, refusal: Mapping[str, Any]) -> str | None:
    """The page of the limit that refused; None if none did, or if it is no limit of the tenant."""
    scope = refusal["limit_name"].partition(".")[0]
    if scope not in ("tenant", "key", "model"):
        return None
    if page_request.tenant is not None:
        return address("/limits")
    tenant_id = quote(refusal["tenant_id"], safe="")
    return address(f"/tenants/{tenant_id}/limits", {"kind": scope})


def _grain_of(window: Mapping[str, str], now: datetime) -> Grain:
    """The smallest bucket of which a chart has room for the whole window. A time that cannot be read is left to the
    API, which names it."""
    try:
        start = datetime.fromisoformat(window["start"])
        end = datetime.fromisoformat(window["end"]) if "end" in window else now
        length_ms = (end - start) // timedelta(milliseconds=1)
    except (ValueError, TypeError, OverflowError):
        return Grain.DAY
    return next((grain for grain in Grain if length_ms <= MAX_BUCKETS * grain.length_ms), Grain.DAY)


def _narrowed(asked: Mapping[str, str], reason: Reason) -> str:
    """The page with the same filters, and those of the reason."""
    return address("/refusals", {**asked, "code": reason.code, "limit_name": reason.limit_name})
