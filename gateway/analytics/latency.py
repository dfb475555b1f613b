"""Percentiles of latencies: the one definition, for the console and the admin API.

They are read from the events, as sums have no percentiles. The sketch is DDSketch (Masson et al., 2019): a value is
within 0.5 % of the exact percentile, whatever the order in which parts are read. A copy of an event that is not merged
yet counts again: percentiles need no deduplication, which would read every column of the key.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isnan

from gateway.analytics.store import Analytics
from gateway.analytics.sums import DURING, Dimension, Grain, TimeRange

RELATIVE_ERROR = 0.005
LEVELS = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Latencies:
    """Percentiles over a group of requests; None: no request of the group has the value.

    `ttft_ms`: to the first token. `itl_ms`: mean time between tokens of a request with two tokens or more, without its
    pauses. `total_latency_ms`: from admission to the end. `queue_ms`: until first admitted.
    """

    ttft_ms: Percentiles | None
    itl_ms: Percentiles | None
    total_latency_ms: Percentiles | None
    queue_ms: Percentiles | None


MEASURES = tuple(each.name for each in fields(Latencies))

_ITL_MS = (
    "if(isNull(ttft_ms) OR completion_tokens < 2, NULL, greatest(0, toInt64(total_latency_ms) - toInt64(ttft_ms) "
    "- toInt64(paused_ms)) / (completion_tokens - 1))"
)
_VALUES = {name: _ITL_MS if name == "itl_ms" else name for name in MEASURES}
_QUANTILES = ", ".join(
    f"quantilesDD({RELATIVE_ERROR}, {', '.join(map(str, LEVELS))})({value})" for value in _VALUES.values()
)


@dataclass(frozen=True, slots=True)
class LatencyPoint:
    """Latencies of `events` requests that ended in the bucket from `bucket_ms` on (None: in the whole window), for
    these values of the requested dimensions."""

    bucket_ms: int | None
    of: Mapping[Dimension, str]
    events: int
    latencies: Latencies


async def latencies(
    analytics: Analytics,
    window: TimeRange,
    *,
    limit: int,
    grain: Grain | None = None,
    by: Collection[Dimension] = (),
    only: Mapping[Dimension, str] | None = None,
) -> list[LatencyPoint]:
    """At most `limit` points, ordered by time and dimensions. `grain`: None for one point of the whole window in each
    group. Buckets and groups without requests are left out."""
    dimensions = [dimension for dimension in Dimension if dimension in by]
    only = only or {}
    names = [*([] if grain is None else ["bucket_ms"]), *(dimension.value for dimension in dimensions)]
    bucket = "" if grain is None else f"toUnixTimestamp({grain.start_of}(occurred_at)) * 1000 AS bucket_ms, "
    condition = " AND ".join((DURING, *(f"{each.value} = {{{each.value}:String}}" for each in only)))
    grouping = f"GROUP BY {', '.join(names)} ORDER BY {', '.join(names)}" if names else "HAVING count() > 0"
    rows = await analytics.query(
        f"""
        SELECT {bucket}{"".join(f"{each.value}, " for each in dimensions)}count(), {_QUANTILES}
        FROM usage_events WHERE {condition}
        {grouping} LIMIT {{limit:UInt32}}
        """,
        {**window.parameters, **{each.value: value for each, value in only.items()}, "limit": limit},
    )
    start = 0 if grain is None else 1
    end = start + len(dimensions)
    return [
        LatencyPoint(
            None if grain is None else int(row[0]),
            dict(zip(dimensions, row[start:end], strict=True)),
            int(row[end]),
            Latencies(*map(_percentiles, row[end + 1 :])),
        )
        for row in rows
    ]


def _percentiles(values: Sequence[float]) -> Percentiles | None:
    return None if any(map(isnan, values)) else Percentiles(*map(float, values))
