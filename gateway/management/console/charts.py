"""Charts as numbers: the positions of an SVG picture's shapes. `templates/charts.html` writes them.

The server draws a chart, so it needs no script; its colours are classes of the stylesheet, so it obeys the content
security policy and follows light and dark. A plot is stretched to the width of the page: shapes are in units of a
picture that is `WIDTH` wide, labels are placed in percent and are not stretched. Each place on the axis has its values
in a `title`, for the mouse, and all values are in a table below the picture.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10

WIDTH = 1000
HEIGHT = 200
TOP = 10
COLOURS = 8
"""Classes `c0` to `c7`; a further series begins again."""
FAILED = "bad"
"""The class of a series of failures."""

_STEPS = (1, 2, 5, 10)
_MAX_LABELS = 6
_FEW_LABELS = 4
_GAP = 0.2
"""Fraction of the width of a bar's slot that is left empty."""

Number = int | float
Spelling = Callable[[Number], str]


@dataclass(frozen=True, slots=True)
class Series:
    """A name and its value at each place of the axis. No value is negative. `tone`: a class in place of the next
    colour."""

    name: str
    values: Sequence[Number]
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A series of a line chart. None: no value at this place. `group`: curves of one group have one colour; `dashed`
    tells them apart."""

    name: str
    values: Sequence[Number | None]
    group: int
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis. `at`: units of the picture on the y axis, percent of the width on the x axis. `minor`: left
    out where there is little room."""

    at: float
    text: str
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Rectangle:
    """`says`: name and value, where they are not in the `title` of a place."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    says: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """`path`: the data of an SVG path."""

    path: str
    colour: str
    dashed: bool


@dataclass(frozen=True, slots=True)
class Place:
    """A column of the picture, and all values in it."""

    x: float
    width: float
    says: str


@dataclass(frozen=True, slots=True)
class Legend:
    """`total` is formatted, or empty."""

    name: str
    colour: str
    total: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture and its values in words: `rows` are of a place's name and each series' value there."""

    title: str
    width: float
    height: float
    bars: tuple[Rectangle, ...] = ()
    lines: tuple[Line, ...] = ()
    places: tuple[Place, ...] = ()
    y_ticks: tuple[Tick, ...] = ()
    x_ticks: tuple[Tick, ...] = ()
    legend: tuple[Legend, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()

    @property
    def summary(self) -> str:
        """The picture in a sentence, for those who do not see it."""
        parts = ", ".join(f"{each.name} {each.total}".strip() for each in self.legend)
        return f"{self.title}: {parts}." if parts else f"{self.title}: nothing."


Labels = Sequence[tuple[int, str]]
"""Labels of the x axis: the index of a place, and its text."""


def stacked_bars(
    title: str,
    places: Sequence[str],
    series: Sequence[Series],
    spelt: Spelling,
    marked: Spelling | None = None,
    labels: Labels | None = None,
    *,
    totals: bool = True,
) -> Chart:
    """One bar at each place, of all series on top of one another; each series has as many values as there are places.
    The table leaves out places without a value. `marked` formats the axis' values, by default as `spelt`. `labels`: by
    default evenly many places are named. `totals`: the legend has the sum of each series."""
    for each in series:
        assert len(each.values) == len(places), f"{each.name} has {len(each.values)} values, not {len(places)}"
    heights = [sum(each.values[place] for each in series) for place in range(len(places))]
    axis = _Axis.of(max(heights, default=0))
    span = WIDTH / max(1, len(places))
    colours = [each.tone or colour(number) for number, each in enumerate(series)]
    bars = []
    for place in range(len(places)):
        foot: float = HEIGHT
        for number, each in enumerate(series):
            if (value := each.values[place]) > 0:
                foot -= value * axis.scale
                x = (place + _GAP / 2) * span
                bars.append(_rectangle(x, foot, span * (1 - _GAP), value * axis.scale, colours[number]))
    cells = [[spelt(each.values[place]) for each in series] for place in range(len(places))]
    return Chart(
        title,
        WIDTH,
        HEIGHT,
        bars=tuple(bars),
        places=_columns(places, [each.name for each in series], cells),
        y_ticks=axis.ticks(marked or spelt),
        x_ticks=_labels(places, labels),
        legend=tuple(
            Legend(each.name, colours[number], spelt(sum(each.values)) if totals else "")
            for number, each in enumerate(series)
        ),
        columns=("Time (UTC)", *(each.name for each in series)),
        rows=tuple((name, *cells[place]) for place, name in enumerate(places) if heights[place] > 0),
    )


def line_chart(
    title: str,
    places: Sequence[str],
    curves: Sequence[Curve],
    spelt: Callable[[Number | None], str],
    labels: Labels | None = None,
) -> Chart:
    """Curves over places, with gaps where there is no value. `spelt` formats None, too."""
    for each in curves:
        assert len(each.values) == len(places), f"{each.name} has {len(each.values)} values, not {len(places)}"
    present = [value for each in curves for value in each.values if value is not None]
    axis = _Axis.of(max(present, default=0))
    span = WIDTH / max(1, len(places))
    cells = [[spelt(each.values[place]) for each in curves] for place in range(len(places))]
    return Chart(
        title,
        WIDTH,
        HEIGHT,
        lines=tuple(
            Line(path, colour(each.group), each.dashed) for each in curves if (path := _path(each.values, span, axis))
        ),
        places=_columns(places, [each.name for each in curves], cells),
        y_ticks=axis.ticks(spelt),
        x_ticks=_labels(places, labels),
        legend=tuple(Legend(each.name, colour(each.group), "", each.dashed) for each in curves),
        columns=("Time (UTC)", *(each.name for each in curves)),
        rows=tuple(
            (name, *cells[place])
            for place, name in enumerate(places)
            if any(each.values[place] is not None for each in curves)
        ),
    )


def shares(
    title: str, parts: Sequence[tuple[str, Number]], spelt: Spelling, of: Number = 0, rest: str | None = None
) -> Chart:
    """One horizontal bar of all parts one after another. `of`: the value of the whole bar, at least their sum. `rest`
    names what is left of it, which has no colour."""
    told = sum(value for _, value in parts)
    whole = max(told, of)
    bars, left = [], 0.0
    for number, (name, value) in enumerate(parts):
        if value > 0:
            width = WIDTH * value / whole
            bars.append(_rectangle(left, 0, width, SHARES_HEIGHT, colour(number), f"{name}: {spelt(value)}"))
            left += width
    return Chart(
        title,
        WIDTH,
        SHARES_HEIGHT,
        bars=tuple(bars),
        legend=(
            *(Legend(name, colour(number), spelt(value)) for number, (name, value) in enumerate(parts)),
            *([] if rest is None else [Legend(rest, "rest", spelt(whole - told))]),
        ),
    )


SHARES_HEIGHT = 20


def nice_step(largest: Number) -> Number:
    """Distance between two marks of an axis, so that about four reach the largest value: 1, 2 or 5 times a power of
    ten. Whole for whole numbers."""
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


@dataclass(frozen=True, slots=True)
class _Axis:
    """A y axis from 0 to `top` in steps."""

    step: Number
    top: Number

    @classmethod
    def of(cls, largest: Number) -> "_Axis":
        step = nice_step(largest)
        return cls(step, step * max(1, -(-largest // step)))

    @property
    def scale(self) -> float:
        """Units of the picture for a value of 1."""
        return (HEIGHT - TOP) / self.top

    def ticks(self, spelt: Spelling) -> tuple[Tick, ...]:
        marks = [self.step * number for number in range(round(self.top / self.step) + 1)]
        return tuple(Tick(round(HEIGHT - mark * self.scale, 2), spelt(mark)) for mark in marks)


def _columns(places: Sequence[str], names: Sequence[str], cells: Sequence[Sequence[str]]) -> tuple[Place, ...]:
    span = WIDTH / max(1, len(places))
    return tuple(
        Place(
            round(place * span, 2),
            round(span, 2),
            "\n".join([name, *(f"{each}: {cell}" for each, cell in zip(names, cells[place], strict=True))]),
        )
        for place, name in enumerate(places)
    )


def _labels(places: Sequence[str], labels: Labels | None) -> tuple[Tick, ...]:
    """Of more than `_FEW_LABELS` every second one is minor."""
    if labels is None:
        every = max(1, -(-len(places) // _MAX_LABELS))
        labels = [(place, places[place]) for place in range(0, len(places), every)]
    return tuple(
        Tick(round((place + 0.5) * 100 / len(places), 2), text, len(labels) > _FEW_LABELS and number % 2 == 1)
        for number, (place, text) in enumerate(labels)
    )


def _path(values: Sequence[Number | None], span: float, axis: _Axis) -> str:
    """A point without neighbours is a line of no length, which a round cap shows."""
    parts, drawing = [], False
    for place, value in enumerate(values):
        if value is not None:
            x, y = round((place + 0.5) * span, 2), round(HEIGHT - value * axis.scale, 2)
            parts.append(f"L{x} {y}" if drawing else f"M{x} {y}h0")
        drawing = value is not None
    return "".join(parts)


def _rectangle(x: float, y: float, width: float, height: float, colour: str, says: str = "") -> Rectangle:
    return Rectangle(round(x, 2), round(y, 2), round(width, 2), round(height, 2), colour, says)
