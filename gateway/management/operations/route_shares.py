"""How many requests each model answered, and why it was this one."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gateway.analytics import Analytics
from gateway.analytics.routed import Routed, routed
from gateway.analytics.sums import Grain, TimeRange
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.http.errors import invalid
from gateway.management.operations.context import AdminContext
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import Choice, Instant, Integer, Kind, ListOf, Member, Text, answer, optional
from gateway.management.operations.timestamps import instant
from gateway.management.operations.usage import WINDOW_QUERY, window_of
from gateway.management.operations.wire import TENANT_ID, money, money_members

MAX_SHARES = 20_000
MAX_BUCKETS = 800
LONGEST = timedelta(days=31)
"""Reasons are counted from the events themselves, which is more work than reading sums."""

_AMOUNT = Integer(0, 2**63 - 1)
_NAMES = ("requested_model", "routed_model", "served_model", "tier_served", "route_reason")
_COUNTS = ("events", "prompt_tokens", "cached_tokens", "completion_tokens")

_SHARE_MEMBERS: dict[str, Member | Kind] = {
    "start": Instant(),
    **dict.fromkeys(_NAMES, Text(255, 0)),
    **dict.fromkeys(_COUNTS, _AMOUNT),
}
SHARES = answer(
    "RouteShares",
    {
        "start": Instant(),
        "end": Instant(),
        "bucket": Choice(tuple(Grain)),
        "data": ListOf(answer("RouteShare", _SHARE_MEMBERS | money_members("cost")), MAX_SHARES),
    },
)
QUERY: Mapping[str, Member] = {
    **WINDOW_QUERY,
    "bucket": optional(Choice(tuple(Grain)), "hour by default."),
    "tenant_id": optional(TENANT_ID),
}


async def shares_answer(analytics: Analytics, query: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Routing decisions in whole buckets of a time range.

    Raises:
        APIError: 400 naming the parameter that is over its bound.
    """
    start, end = window_of(query, now)
    if end - start > LONGEST:
        raise invalid("start", f"start must be at most {LONGEST.days} days before end.")
    grain = Grain(query["bucket"] or Grain.HOUR)
    window = TimeRange(unix_ms(start), unix_ms(end)).widened_to(grain.length_ms)
    if (window.end_ms - window.start_ms) // grain.length_ms > MAX_BUCKETS:
        raise invalid("bucket", f"At most {MAX_BUCKETS} buckets: choose a longer bucket or a shorter time.")
    found = await routed(analytics, grain, window, limit=MAX_SHARES + 1, tenant_id=query["tenant_id"])
    if len(found) > MAX_SHARES:
        raise invalid("bucket", f"Over {MAX_SHARES} shares: choose a longer bucket or a shorter time.")
    return {
        "start": instant(utc_from_ms(window.start_ms)),
        "end": instant(utc_from_ms(window.end_ms)),
        "bucket": grain.value,
        "data": [_share(each) for each in found],
    }


def _share(each: Routed) -> dict[str, Any]:
    return {
        "start": instant(utc_from_ms(each.bucket_ms)),
        **{name: getattr(each, name) for name in (*_NAMES, *_COUNTS)},
        **money("cost", each.cost_nanodollars),
    }


ROUTES = Routes()


@ROUTES.get("/routing/shares", READERS, SHARES, query=QUERY)
async def read_route_shares(context: AdminContext, call: OperationInput) -> Any:
    """Read the number of requests that each model answered over time, by the reason of its selection."""
    return await shares_answer(context.analytics, call.query, context.now())
