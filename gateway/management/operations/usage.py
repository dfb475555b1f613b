"""Usage, summed by time bucket."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gateway.analytics import Analytics
from gateway.analytics.sums import SUM_COLUMNS, Dimension, Grain, TimeRange
from gateway.analytics.usage import Point, series
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
    Text,
    answer,
    nullable,
    optional,
)
from gateway.management.operations.timestamps import instant
from gateway.management.operations.wire import KEY_ID, MODEL_NAME, TENANT_ID, money, money_members

MAX_BUCKETS = 1500
MAX_POINTS = 20_000
DEFAULT_WINDOW = timedelta(days=1)
LONGEST_WINDOW = timedelta(days=400)

GROUPS = {"tenant": Dimension.TENANT, "key": Dimension.KEY, "model": Dimension.MODEL, "tier": Dimension.TIER}
_COST = "cost_nanodollars"
_COUNTS = tuple(name for name in SUM_COLUMNS if name != _COST)
_AMOUNT = Integer(0, 2**63 - 1)

WINDOW_QUERY: Mapping[str, Member] = {
    "start": optional(Instant(), "24 hours before `end` by default."),
    "end": optional(Instant(), "Not included; now by default."),
}
FILTERS: Mapping[str, Member] = {
    "tenant_id": optional(TENANT_ID),
    "key_id": optional(KEY_ID),
    "model": optional(MODEL_NAME),
    "tier": optional(Text(64)),
}
_FILTER_DIMENSIONS = {
    "tenant_id": Dimension.TENANT,
    "key_id": Dimension.KEY,
    "model": Dimension.MODEL,
    "tier": Dimension.TIER,
}

USAGE_POINT_MEMBERS: dict[str, Member | Kind] = {
    "start": Instant(),
    **{word: nullable(Text(255, 0), "Null: not grouped by it.") for word in GROUPS},
    **dict.fromkeys(_COUNTS, _AMOUNT),
    **money_members("cost"),
}
_USAGE_MEMBERS: dict[str, Member | Kind] = {
    "start": Instant(),
    "end": Instant(),
    "bucket": Choice(tuple(Grain)),
    "data": ListOf(answer("UsagePoint", USAGE_POINT_MEMBERS), MAX_POINTS),
}
USAGE = answer("Usage", _USAGE_MEMBERS)


def usage_query(words: Mapping[str, Dimension] = GROUPS) -> Mapping[str, Member]:
    return {
        **WINDOW_QUERY,
        "bucket": optional(Choice(tuple(Grain)), "hour by default."),
        "by": optional(ListOf(Choice(tuple(words)), len(words)), "What to tell apart, separated by commas."),
    }


def window_of(query: Mapping[str, Any], now: datetime) -> tuple[datetime, datetime]:
    """
    Raises:
        APIError: 400 naming `start`, it is not before the end or is too long before it.
    """
    end: datetime = query["end"] or now
    start: datetime = query["start"] or max(end, _EARLIEST + DEFAULT_WINDOW) - DEFAULT_WINDOW
    if not (_EARLIEST <= start < end <= _LATEST):
        raise invalid("start", "start must be before end, and both within the years 2000 to 2100.")
    if end - start > LONGEST_WINDOW:
        raise invalid("start", f"start must be at most {LONGEST_WINDOW.days} days before end.")
    return start, end


async def usage_answer(
    analytics: Analytics, query: Mapping[str, Any], only: Mapping[Dimension, str], now: datetime
) -> dict[str, Any]:
    """Usage in whole buckets of a time range."""
    start, end = window_of(query, now)
    grain = Grain(query["bucket"] or Grain.HOUR)
    window = TimeRange(unix_ms(start), unix_ms(end)).widened_to(grain.length_ms)
    if (window.end_ms - window.start_ms) // grain.length_ms > MAX_BUCKETS:
        raise invalid("bucket", f"At most {MAX_BUCKETS} buckets: choose a longer bucket or a shorter time.")
    by = {word: GROUPS[word] for word in query["by"] or ()}
    points = await series(analytics, grain, window, by=by.values(), only=only)
    if len(points) > MAX_POINTS:
        raise invalid("by", f"{len(points)} points exceed the maximum of {MAX_POINTS}. Filter, or group by less.")
    return {
        "start": instant(utc_from_ms(window.start_ms)),
        "end": instant(utc_from_ms(window.end_ms)),
        "bucket": grain.value,
        "data": [_point(point) for point in points],
    }


def only_of(query: Mapping[str, Any]) -> dict[Dimension, str]:
    return {_FILTER_DIMENSIONS[name]: query[name] for name in FILTERS if query.get(name) is not None}


ROUTES = Routes()


@ROUTES.get("/usage", READERS, USAGE, query={**usage_query(), **FILTERS})
async def read_usage(context: AdminContext, call: OperationInput) -> Any:
    """Read usage over time, grouped by tenant, key, model or class."""
    return await usage_answer(context.analytics, call.query, only_of(call.query), context.now())


def _point(point: Point) -> dict[str, Any]:
    return {
        "start": instant(utc_from_ms(point.bucket_ms)),
        **{word: point.of.get(dimension) for word, dimension in GROUPS.items()},
        **{name: getattr(point.sums, name) for name in _COUNTS},
        **money("cost", point.sums.cost_nanodollars),
    }


_EARLIEST = utc_from_ms(946_684_800_000)
_LATEST = utc_from_ms(4_102_444_800_000)
