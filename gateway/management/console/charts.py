"""Charts as numbers: where everything of an SVG picture lies. `templates/charts.html` writes them out.

A chart is drawn by the server, so it is there without a script; its colours are classes of the stylesheet, so it obeys
the page's security policy and follows light and dark. Each shape has its value in a `title`, for the mouse, and the
same values are in a table below the picture, for other readers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10

WIDTH = 720
HEIGHT = 220
LEFT = 64
RIGHT = 8
TOP = 10
BOTTOM = 24
COLOURS = 8
"""Classes `c0` to `c7`; a further series begins again."""

_STEPS = (1, 2, 5, 10)
_MAX_LABELS = 6
_GAP = 0.2
"""Fraction of the width of a bar's slot that is left empty."""

Number = int | float
Spelling = Callable[[Number], str]


@dataclass(frozen=True, slots=True)
class Series:
    """A name and its value at each place of the axis. No value is negative."""

    name: str
    values: Sequence[Number]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis, in units of the picture."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Rectangle:
    """`says` what it stands for."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    says: str


@dataclass(frozen=True, slots=True)
class Legend:
    """`total` is spelt, or empty."""

    name: str
    colour: str
    total: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture and its values in words: `rows` are of a place's name and each series' value there."""

    title: str
    width: float
    height: float
    bars: tuple[Rectangle, ...]
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]
    legend: tuple[Legend, ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def summary(self) -> str:
        """The picture in a sentence, for those who do not see it."""
        parts = ", ".join(f"{each.name} {each.total}" for each in self.legend)
        return f"{self.title}: {parts}." if parts else f"{self.title}: nothing."


def stacked_bars(
    title: str,
    places: Sequence[str],
    series: Sequence[Series],
    spelt: Spelling,
    marked: Spelling | None = None,
    place_name: str = "Time (UTC)",
) -> Chart:
    """One bar at each place, of all series on top of one another; each series has as many values as there are places.
    The table leaves out places where there is nothing. The axis spells as `marked` does, by default as everything else:
    there is little room."""
    for each in series:
        assert len(each.values) == len(places), f"{each.name} has {len(each.values)} values, not {len(places)}"
    heights = [sum(each.values[place] for each in series) for place in range(len(places))]
    step = nice_step(max(heights, default=0))
    top = step * max(1, -(-max(heights, default=0) // step))
    span = (WIDTH - LEFT - RIGHT) / max(1, len(places))
    base = HEIGHT - BOTTOM
    scale = (base - TOP) / top
    bars = []
    for place, name in enumerate(places):
        foot: float = base
        for number, each in enumerate(series):
            value = each.values[place]
            if value > 0:
                foot -= value * scale
                says = f"{name}, {each.name}: {spelt(value)}"
                x = LEFT + (place + _GAP / 2) * span
                bars.append(_rectangle(x, foot, span * (1 - _GAP), value * scale, number, says))
    return Chart(
        title,
        WIDTH,
        HEIGHT,
        tuple(bars),
        tuple(Tick(round(base - mark * scale, 2), (marked or spelt)(mark)) for mark in _marks(top, step)),
        tuple(_places(places, span)),
        tuple(Legend(each.name, colour(number), spelt(sum(each.values))) for number, each in enumerate(series)),
        (place_name, *(each.name for each in series)),
        tuple(
            (name, *(spelt(each.values[place]) for each in series))
            for place, name in enumerate(places)
            if heights[place] > 0
        ),
    )


def shares(
    title: str, parts: Sequence[tuple[str, Number]], spelt: Spelling, of: Number = 0, rest: str | None = None
) -> Chart:
    """One bar that lies down, of all parts one after another. `of` is what the whole bar stands for, at least their
    sum. `rest` names what is left of it, which has no colour."""
    told = sum(value for _, value in parts)
    whole = max(told, of)
    bars, left = [], 0.0
    for number, (name, value) in enumerate(parts):
        if value > 0:
            width = WIDTH * value / whole
            bars.append(_rectangle(left, 0, width, SHARES_HEIGHT, number, f"{name}: {spelt(value)}"))
            left += width
    return Chart(
        title,
        WIDTH,
        SHARES_HEIGHT,
        tuple(bars),
        (),
        (),
        (
            *(Legend(name, colour(number), spelt(value)) for number, (name, value) in enumerate(parts)),
            *([] if rest is None else [Legend(rest, "rest", spelt(whole - told))]),
        ),
        (),
        (),
    )


SHARES_HEIGHT = 20


def nice_step(largest: Number) -> Number:
    """Between two marks of an axis, so that about four reach the largest value: 1, 2 or 5 times a power of ten. Whole
    for whole numbers."""
    if largest <= 0:
        return 1
    rough = largest / 4
    power = floor(log10(rough))
    factor = next(each for each in _STEPS if each >= rough / 10**power * (1 - 1e-9))
    if isinstance(largest, int):
        return max(1, factor * 10**power if power >= 0 else 1)
    return float(factor * 10.0**power)


def colour(number: int) -> str:
    """The class of the n-th series."""
    return f"c{number % COLOURS}"


def _marks(top: Number, step: Number) -> list[Number]:
    return [step * number for number in range(round(top / step) + 1)]


def _places(places: Sequence[str], span: float) -> list[Tick]:
    """Names under the axis, as many as have room."""
    every = max(1, -(-len(places) // _MAX_LABELS))
    return [Tick(round(LEFT + (place + 0.5) * span, 2), places[place]) for place in range(0, len(places), every)]


def _rectangle(x: float, y: float, width: float, height: float, number: int, says: str) -> Rectangle:
    return Rectangle(round(x, 2), round(y, 2), round(width, 2), round(height, 2), colour(number), says)
