"""Percentiles of latencies, over time or over a whole window."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from gateway.analytics import Analytics
from gateway.analytics.latency import MEASURES, LatencyPoint, Percentiles, latencies
from gateway.analytics.sums import Dimension, Grain, TimeRange
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.http.errors import invalid
from gateway.management.operations.context import AdminContext
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import (
    Choice,
    Instant,
    Integer,
    Kind,
    ListOf,
    Member,
    Number,
    Text,
    answer,
    nullable,
    optional,
)
from gateway.management.operations.timestamps import instant
from gateway.management.operations.usage import FILTERS, GROUPS, WINDOW_QUERY, only_of, window_of

MAX_POINTS = 5_000
LONGEST = timedelta(days=92)
"""Percentiles are read from the events themselves, which is more work than reading sums."""

PERCENTILES = answer("Percentiles", {"p50": Number(), "p95": Number(), "p99": Number()})
_ABOUT = {
    "ttft_ms": "Time to the first token.",
    "itl_ms": "Mean time between two tokens of a request, without its pauses.",
    "total_latency_ms": "From admission to the end of the answer.",
    "queue_ms": "Wait until first admitted.",
}
_POINT_MEMBERS: dict[str, Member | Kind] = {
    "start": nullable(Instant(), "Null: of the whole window."),
    **{word: nullable(Text(255, 0), "Null: not grouped by it.") for word in GROUPS},
    "events": Integer(0, 2**63 - 1),
    **{name: nullable(PERCENTILES, f"{_ABOUT[name]} Milliseconds; null: no request has it.") for name in MEASURES},
}
LATENCIES = answer(
    "Latencies",
    {
        "start": Instant(),
        "end": Instant(),
        "data": ListOf(answer("LatencyPoint", _POINT_MEMBERS), MAX_POINTS),
    },
)
QUERY: Mapping[str, Member] = {
    **WINDOW_QUERY,
    "bucket": optional(Choice(tuple(Grain)), "By default the whole window is one."),
    "by": optional(ListOf(Choice(tuple(GROUPS)), len(GROUPS)), "What to group by, separated by commas."),
    **FILTERS,
}


async def latencies_answer(
    analytics: Analytics, query: Mapping[str, Any], only: Mapping[Dimension, str], now: datetime
) -> dict[str, Any]:
    """Percentiles of a time range; with buckets, of the whole buckets that it overlaps.

    Raises:
        APIError: 400 naming the parameter that is over its bound.
    """
    start, end = window_of(query, now)
    if end - start > LONGEST:
        raise invalid("start", f"start must be at most {LONGEST.days} days before end.")
    grain = None if query["bucket"] is None else Grain(query["bucket"])
    window = TimeRange(unix_ms(start), unix_ms(end))
    if grain is not None:
        window = window.widened_to(grain.length_ms)
    by = [GROUPS[word] for word in query["by"] or ()]
    points = await latencies(analytics, window, limit=MAX_POINTS + 1, grain=grain, by=by, only=only)
    if len(points) > MAX_POINTS:
        raise invalid("by", f"Over {MAX_POINTS} points. Filter, or group by less.")
    return {
        "start": instant(utc_from_ms(window.start_ms)),
        "end": instant(utc_from_ms(window.end_ms)),
        "data": [_point(point) for point in points],
    }


ROUTES = Routes()


@ROUTES.get("/usage/latencies", READERS, LATENCIES, query=QUERY)
async def read_latencies(context: AdminContext, call: OperationInput) -> Any:
    """Read percentiles of the time to the first token, the time between tokens, the whole latency and the queue."""
    return await latencies_answer(context.analytics, call.query, only_of(call.query), context.now())


def _point(point: LatencyPoint) -> dict[str, Any]:
    found = {name: _percentiles(getattr(point.latencies, name)) for name in MEASURES}
    return {
        "start": None if point.bucket_ms is None else instant(utc_from_ms(point.bucket_ms)),
        **{word: point.of.get(dimension) for word, dimension in GROUPS.items()},
        "events": point.events,
        **found,
    }


def _percentiles(percentiles: Percentiles | None) -> dict[str, float] | None:
    return None if percentiles is None else {name: round(ms, 3) for name, ms in asdict(percentiles).items()}
