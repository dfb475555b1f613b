"""Parts of a dashboard, independent of Grafana's format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class PromQL:
    """A question to Prometheus. `legend` names a series by its labels, as in `{{turnpike_class}}`."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class SQL:
    """A question to ClickHouse. Of a panel over time: ordered by a column `time`; a text column, where there is one, is
    called `series` and tells the lines apart; all others are numbers."""

    text: str


class Form(Enum):
    """How a panel shows its answer. The first three take instants, the rest a span of time."""

    STAT = auto()
    """A large number for each series."""
    PIE = auto()
    """Shares of a whole."""
    TABLE = auto()
    LINES = auto()
    STACK = auto()
    """Areas on top of each other, for what adds up to a whole at each moment."""
    BARS = auto()
    """Bars on top of each other, for what adds up over time."""
    HEATMAP = auto()
    """Of a histogram's buckets by `le`."""

    @property
    def over_time(self) -> bool:
        return self in (Form.LINES, Form.STACK, Form.BARS, Form.HEATMAP)


@dataclass(frozen=True, slots=True)
class Threshold:
    """From `value` on it is `color`, one of Grafana's names: those suit light and dark."""

    value: float
    color: str = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One question and what to do with the answer.

    `bad` says what a bad value looks like and what to look at then; `runbook` is the alert whose runbook helps. `unit`
    is Grafana's name of it; a table's columns have their own in `columns`. `width` is in columns of `layout.COLUMNS`,
    `height` in units of some 30 pixels.
    """

    title: str
    form: Form
    unit: str
    queries: tuple[PromQL | SQL, ...]
    meaning: str
    bad: str
    runbook: str | None = None
    width: int = 8
    height: int = 8
    thresholds: tuple[Threshold, ...] = ()
    maximum: float | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable that the reader chooses at the top of the page. `many`: several values at once, all of them to begin
    with. `query` reads the values, `choices` states them. With neither it is text that the reader writes."""

    name: str
    label: str
    query: PromQL | SQL | None = None
    choices: tuple[str, ...] = ()
    first: str = ""
    many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """`slug` is its file's name and, behind `turnpike-`, its uid. `refresh` is how often an open page asks again,
    `period` how far back it looks."""

    slug: str
    title: str
    question: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...]
    refresh: str
    period: str
