"""From the points of a usage series to the charts, totals and tables of a page. Every sum is exact."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.analytics.sums import SUM_COLUMNS, Grain
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.management.console.charts import Chart, Series, stacked_bars
from gateway.management.console.formatting import money, short, short_money, whole
from gateway.management.console.time_axis import place_name, time_labels
from gateway.management.operations.timestamps import instant

MAX_SERIES = 7
"""In a chart; the rest is one more, `others`."""
OTHERS = "others"

Point = Mapping[str, Any]
Amount = Callable[[Point], int]


@dataclass(frozen=True, slots=True)
class Group:
    """Usage of one tenant, key, model or class; of all together if `id` is None."""

    id: str | None
    name: str
    sums: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class UsageFigures:
    """All that the page shows. `groups`: the dearest first."""

    total: Group
    groups: tuple[Group, ...]
    charts: tuple[Chart, ...]


def figures_of(answer: Mapping[str, Any], by: str | None, names: Mapping[str, str]) -> UsageFigures:
    """`answer` is what `readUsage` says; `by` the word of what it tells apart. `names`: by the ids in it."""
    points: Sequence[Point] = answer["data"]
    starts = bucket_starts(answer)
    groups = grouped(points, by, names)
    places = [place_name(start, Grain(answer["bucket"])) for start in starts]
    charts = _apart(points, starts, places, by, groups) if by else _plain(points, starts, places)
    return UsageFigures(Group(None, "all", summed(points)), groups, tuple(charts))


def bucket_starts(answer: Mapping[str, Any]) -> list[str]:
    """All buckets of the window, with usage or without, as the points name them."""
    start, end = (unix_ms(datetime.fromisoformat(answer[name])) for name in ("start", "end"))
    length_ms = Grain(answer["bucket"]).length_ms
    return [instant(utc_from_ms(at_ms)) for at_ms in range(start, end, length_ms)]


def grouped(points: Sequence[Point], by: str | None, names: Mapping[str, str]) -> tuple[Group, ...]:
    """The dearest first, then by name."""
    if by is None:
        return ()
    members: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        members[point[by]].append(point)
    groups = [Group(id, names.get(id, id), summed(each)) for id, each in members.items()]
    return tuple(sorted(groups, key=lambda each: (-each.sums["cost_nanodollars"], each.name)))


def summed(points: Sequence[Point]) -> dict[str, int]:
    return {name: sum(point[name] for point in points) for name in SUM_COLUMNS}


def _plain(points: Sequence[Point], starts: Sequence[str], places: Sequence[str]) -> list[Chart]:
    def series(name: str, amount: Amount) -> Series:
        return Series(name, _values(points, starts, amount))

    tokens = [
        series("prompt, computed", lambda each: int(each["prompt_tokens"] - each["cached_tokens"])),
        series("prompt, cached", lambda each: int(each["cached_tokens"])),
        series("completion", lambda each: int(each["completion_tokens"])),
    ]
    labels = time_labels(starts)
    return [
        stacked_bars("Tokens", places, tokens, whole, short, labels),
        stacked_bars("Requests", places, [series("requests", lambda each: int(each["events"]))], whole, short, labels),
        stacked_bars("Cost", places, [series("cost", _cost)], money, short_money, labels),
    ]


def _apart(
    points: Sequence[Point], starts: Sequence[str], places: Sequence[str], by: str, groups: Sequence[Group]
) -> list[Chart]:
    shown = groups if len(groups) <= MAX_SERIES + 1 else groups[:MAX_SERIES]
    ids = {each.id for each in shown}

    def series(amount: Amount) -> list[Series]:
        told = [
            Series(group.name, _values([each for each in points if each[by] == group.id], starts, amount))
            for group in shown
        ]
        rest = [each for each in points if each[by] not in ids]
        return told + ([Series(OTHERS, _values(rest, starts, amount))] if rest else [])

    labels = time_labels(starts)
    return [
        stacked_bars("Tokens", places, series(_tokens), whole, short, labels),
        stacked_bars("Requests", places, series(lambda each: int(each["events"])), whole, short, labels),
        stacked_bars("Cost", places, series(_cost), money, short_money, labels),
    ]


def _values(points: Sequence[Point], starts: Sequence[str], amount: Amount) -> list[int]:
    by_start: dict[str, int] = defaultdict(int)
    for point in points:
        by_start[point["start"]] += amount(point)
    assert by_start.keys() <= set(starts), "a point is outside of its window"
    return [by_start[start] for start in starts]


def _tokens(point: Point) -> int:
    return int(point["prompt_tokens"] + point["completion_tokens"])


def _cost(point: Point) -> int:
    return int(point["cost_nanodollars"])
