"""From the points of a refusal series to the chart and the tables of a page."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.analytics.sums import Grain
from gateway.management.console.charts import Chart, Series, stacked_bars
from gateway.management.console.formatting import short, whole
from gateway.management.console.time_axis import place_name, time_labels
from gateway.management.console.usage_figures import MAX_SERIES, OTHERS, bucket_starts
from gateway.telemetry.outcomes import RequestOutcome


@dataclass(frozen=True, slots=True)
class Reason:
    """Refused requests with the same code, by the same limit; `limit_name`: "" if no limit refused them."""

    code: str
    limit_name: str
    requests: int


@dataclass(frozen=True, slots=True)
class RefusalFigures:
    """The figures of a window, in requests. `reasons`: the most frequent first."""

    refused: int
    failed: int
    reasons: tuple[Reason, ...]
    chart: Chart


def figures_of(answer: Mapping[str, Any]) -> RefusalFigures:
    """`answer`: that of `readRefusals`, grouped by `code`, `limit` and `outcome`."""
    points = answer["data"]
    failed = sum(point["requests"] for point in points if point["outcome"] == RequestOutcome.FAILED)
    total = sum(point["requests"] for point in points)
    return RefusalFigures(total - failed, failed, reasons_of(points), _by_code(answer))


def reasons_of(points: Sequence[Mapping[str, Any]]) -> tuple[Reason, ...]:
    """The reasons in points that are grouped by `code` and `limit`, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for point in points:
        counts[point["code"], point["limit"]] += point["requests"]
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return tuple(Reason(code, limit_name, requests) for (code, limit_name), requests in ordered)


def _by_code(answer: Mapping[str, Any]) -> Chart:
    """Bars by error code over time, the most frequent codes with a colour of their own."""
    totals: Counter[str] = Counter()
    values: dict[str, Counter[str]] = {}
    for point in answer["data"]:
        totals[point["code"]] += point["requests"]
        values.setdefault(point["code"], Counter())[point["start"]] += point["requests"]
    codes = sorted(totals, key=lambda code: (-totals[code], code))
    shown = codes if len(codes) <= MAX_SERIES + 1 else codes[:MAX_SERIES]
    starts, grain = bucket_starts(answer), Grain(answer["bucket"])
    series = [Series(code, [values[code][start] for start in starts]) for code in shown]
    if rest := codes[len(shown) :]:
        series.append(Series(OTHERS, [sum(values[code][start] for code in rest) for start in starts]))
    places = [place_name(start, grain) for start in starts]
    return stacked_bars("Refused requests by error code", places, series, whole, short, time_labels(starts))
