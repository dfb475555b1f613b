"""Percentiles of latencies as tables and charts show them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from gateway.analytics.latency import MEASURES
from gateway.analytics.sums import Grain
from gateway.http.errors import APIError
from gateway.management.console.charts import Chart, Curve, line_chart
from gateway.management.console.formatting import duration
from gateway.management.console.time_axis import place_name, time_labels
from gateway.management.operations.latencies import LONGEST

MAX_GROUPS = 4
"""In a chart: each has two curves."""

Point = Mapping[str, Any]
Read = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LatencyFigures:
    """Percentiles by group, "" for all together. A measure is one of `MEASURES`, a level p50, p95 or p99."""

    groups: Mapping[str, Point] = field(default_factory=lambda: MappingProxyType({}))

    def shown(self, measure: str, level: str, group: str = "") -> str:
        """A percentile with its unit; a dash if no request has it."""
        assert measure in MEASURES, measure
        percentiles = self.groups.get(group, {}).get(measure)
        return duration(None if percentiles is None else percentiles[level])


async def read_latencies(read: Read, query: Mapping[str, str], by: str | None) -> LatencyFigures | None:
    """Percentiles of a window, together and by group; None for a window that is too long for them. `query`: `start`,
    maybe `end`, and filters."""
    start, end = (datetime.fromisoformat(query[name]) if name in query else None for name in ("start", "end"))
    if start is not None and end is not None and end - start > LONGEST:
        return None
    try:
        points = (await read("readLatencies", query=query))["data"]
        grouped = (await read("readLatencies", query={**query, "by": by}))["data"] if by else []
    except APIError as error:
        if error.status != 400:
            raise
        return None  # readUsage has named what is wrong with the query; what is left is a bound of percentiles
    return LatencyFigures({each[by]: each for each in grouped} | ({"": points[0]} if points else {}))


def latency_chart(
    title: str, points: Sequence[Point], starts: Sequence[str], grain: Grain, measure: str, by: str | None = None
) -> Chart:
    """The p50 and p95 of a measure over time, of the groups with most requests. The p50 is dotted."""
    groups: dict[str, dict[str, Point]] = {}
    for point in points:
        groups.setdefault(point[by] if by else "", {})[point["start"]] = point
    ordered = sorted(groups, key=lambda name: (-sum(each["events"] for each in groups[name].values()), name))
    curves = []
    for number, name in enumerate(sorted(ordered[:MAX_GROUPS])):
        for level in ("p50", "p95"):
            values = [_value(groups[name].get(start), measure, level) for start in starts]
            curves.append(Curve(f"{name} {level}".strip(), values, number, dashed=level == "p50"))
    return line_chart(title, [place_name(start, grain) for start in starts], curves, duration, time_labels(starts))


def _value(point: Point | None, measure: str, level: str) -> float | None:
    percentiles = None if point is None else point[measure]
    return None if percentiles is None else float(percentiles[level])
