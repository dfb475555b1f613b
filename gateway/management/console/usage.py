"""The usage page: usage over time, by tenant, key, model or class."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.analytics.sums import SUM_COLUMNS, Grain
from gateway.http.errors import APIError, invalid
from gateway.management.console.addresses import address
from gateway.management.console.charts import Chart
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import (
    reading,
    shown_again,
    span_of,
    span_options,
    typed_fields,
    window_query,
)
from gateway.management.console.latency_figures import latency_chart, read_latencies
from gateway.management.console.names import Names, names_of, pickers_of, resolved
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
GROUPINGS = {"tenant": "tenant", "key": "key", "model": "model", "tier": "class"}
EVERY_S = 30
FILTERS = ("tenant_id", "key_id", "model", "tier")

_ASKED = ("window", "start", "end", "bucket", "by", *FILTERS)
_CSV_COLUMNS = ("start", "name", *WORDS, *(name for name in SUM_COLUMNS if name != "cost_nanodollars"), "cost_dollars")


@dataclass(frozen=True, slots=True)
class Asked:
    """The query of a form, as `readUsage` takes it."""

    query: Mapping[str, str]
    by: str | None


SCREENS = Screens()


@SCREENS.get("/usage", "usage", "Usage", READERS, section="Observe", tenants=True)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    query = page_request.query
    values: dict[str, Any] = {
        "typed": typed_fields(query, *_ASKED),
        "spans": span_options(),
        "default_span": DEFAULT_SPAN,
        "grains": [(each.value, each.value) for each in Grain],
        "groupings": [(each, GROUPINGS[each]) for each in (WORDS if page_request.tenant is None else WORDS[1:])],
        "headings": GROUPINGS,
        "everyone": page_request.tenant is None,
        "most": MAX_GROUPS,
        "csv": address("/usage.csv", query.given(*_ASKED)),
        "every_s": EVERY_S,
        "error": None,
        "figures": None,
    }
    try:
        asked = await _asked(context, page_request)
        answer = await reading(page_request)("readUsage", query=asked.query)
        if len(bucket_starts(answer)) > MAX_BUCKETS:
            raise invalid("bucket", f"Over {MAX_BUCKETS} buckets: choose a longer bucket or a shorter time.")
    except APIError as error:
        if not shown_again(error):
            raise
        return Page(
            "usage.html", values | {"error": error, "pickers": await pickers_of(context, page_request, {})}, 400
        )
    names = await _names(context, page_request, answer, asked.by)
    latencies = await read_latencies(reading(page_request), _window_and_filters(asked.query), asked.by)
    values |= {
        "answer": answer,
        "names": names,
        "pickers": await pickers_of(context, page_request, asked.query),
        "figures": figures_of(answer, asked.by, shown_names(names, asked.by)),
        "latencies": latencies,
        "charts": [] if latencies is None else [await _latency_chart(page_request, asked, answer)],
    }
    return Page("usage.html", values)


async def _latency_chart(page_request: PageRequest, asked: Asked, answer: Mapping[str, Any]) -> Chart:
    """Over the time of the other charts."""
    points = (await reading(page_request)("readLatencies", query={**asked.query, "bucket": answer["bucket"]}))["data"]
    grain = Grain(answer["bucket"])
    return latency_chart("Time to the first token (TTFT)", points, bucket_starts(answer), grain, "ttft_ms", asked.by)


def _window_and_filters(query: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in query.items() if name not in ("bucket", "by")}


async def _names(
    context: ConsoleContext, page_request: PageRequest, answer: Mapping[str, Any], by: str | None
) -> Names:
    ids = {each[by] for each in answer["data"]} if by in ("tenant", "key") else set()
    return await names_of(context, page_request, **({f"{by}s": ids} if ids else {}))


def shown_names(names: Names, by: str | None) -> Mapping[str, str]:
    """The names of groups by their ids."""
    return names.tenants if by == "tenant" else {id: label.text for id, label in names.keys.items()}


@SCREENS.get("/usage.csv", "usage-csv", "Usage as CSV", READERS, tenants=True)
async def as_csv(context: ConsoleContext, page_request: PageRequest) -> Document:
    """Every point, not only those that a chart has room for."""
    asked = await _asked(context, page_request)
    answer = await reading(page_request)("readUsage", query=asked.query)
    names = shown_names(await _names(context, page_request, answer, asked.by), asked.by)
    rows = [each | {"name": names.get(each[asked.by], each[asked.by]) if asked.by else ""} for each in answer["data"]]
    return Document(csv_text(_CSV_COLUMNS, rows).encode(), "text/csv; charset=utf-8", "usage.csv")


async def _asked(context: ConsoleContext, page_request: PageRequest) -> Asked:
    """
    Raises:
        APIError: 400 naming the field.
    """
    query = page_request.query
    filters = await resolved(context, page_request, query.given(*FILTERS))
    window = window_query(query, context.now(), DEFAULT_SPAN)
    grain = query.get("bucket") or span_of(query, DEFAULT_SPAN).grain.value
    by = query.get("by") or None
    if by is not None:
        Choice(WORDS).read(by, "by")
    told = {"by": by} if by is not None else {}
    return Asked({**window, "bucket": grain, **told, **filters}, by)
