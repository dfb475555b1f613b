"""The usage page: usage over time, by tenant, key, model or class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.analytics.sums import SUM_COLUMNS, Grain
from gateway.http.errors import APIError, invalid
from gateway.management.console.addresses import address
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import (
    reading,
    shown_again,
    span_of,
    span_options,
    tenant_names,
    typed_fields,
    window_query,
)
from gateway.management.console.formatting import duration
from gateway.management.console.screens import Document, Page, PageRequest, Screens
from gateway.management.console.usage_figures import bucket_starts, figures_of
from gateway.management.operations.roles import READERS
from gateway.management.operations.schema import Choice
from gateway.spreadsheet import csv_text

MAX_BUCKETS = 400
"""In a chart: more bars than that cannot be told apart."""
MAX_GROUPS = 100
"""In the table; the file has all."""
DEFAULT_SPAN = "day"
WORDS = ("tenant", "key", "model", "tier")
FILTERS = ("tenant_id", "key_id", "model", "tier")

_ASKED = ("window", "start", "end", "bucket", "by", *FILTERS)
_CSV_COLUMNS = ("start", *WORDS, *(name for name in SUM_COLUMNS if name != "cost_nanodollars"), "cost_dollars")


@dataclass(frozen=True, slots=True)
class Asked:
    """The query of a form, as `readUsage` takes it."""

    query: Mapping[str, str]
    by: str | None


SCREENS = Screens()


@SCREENS.get("/usage", "usage", "Usage", READERS, section="Observe", tenants=True)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    typed = typed_fields(page_request.query, *_ASKED)
    names = await tenant_names(page_request)
    values: dict[str, Any] = {
        "typed": typed,
        "spans": span_options(),
        "default_span": DEFAULT_SPAN,
        "grains": [(each.value, each.value) for each in Grain],
        "words": [(each, each) for each in (WORDS if page_request.tenant is None else WORDS[1:])],
        "names": names,
        "everyone": page_request.tenant is None,
        "most": MAX_GROUPS,
        "csv": address("/usage.csv", page_request.query.given(*_ASKED)),
        "duration": duration,
        "error": None,
        "figures": None,
    }
    try:
        asked = _asked(context, page_request)
        answer = await reading(page_request)("readUsage", query=asked.query)
        if len(bucket_starts(answer)) > MAX_BUCKETS:
            raise invalid("bucket", f"Over {MAX_BUCKETS} buckets: choose a longer bucket or a shorter time.")
    except APIError as error:
        if not shown_again(error):
            raise
        return Page("usage.html", values | {"error": error}, 400)
    return Page("usage.html", values | {"answer": answer, "figures": figures_of(answer, asked.by, names)})


@SCREENS.get("/usage.csv", "usage-csv", "Usage as CSV", READERS, tenants=True)
async def as_csv(context: ConsoleContext, page_request: PageRequest) -> Document:
    """Every point, not only those that a chart has room for."""
    answer = await reading(page_request)("readUsage", query=_asked(context, page_request).query)
    return Document(csv_text(_CSV_COLUMNS, answer["data"]).encode(), "text/csv; charset=utf-8", "usage.csv")


def _asked(context: ConsoleContext, page_request: PageRequest) -> Asked:
    """
    Raises:
        APIError: 400 naming the field.
    """
    query = page_request.query
    window = window_query(query, context.now(), DEFAULT_SPAN)
    grain = query.get("bucket") or span_of(query, DEFAULT_SPAN).grain.value
    by = query.get("by") or None
    if by is not None:
        Choice(WORDS).read(by, "by")
    told = {"by": by} if by is not None else {}
    return Asked({**window, "bucket": grain, **told, **query.given(*FILTERS)}, by)
