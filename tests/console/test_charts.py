"""A chart says what its values are: in its shapes, in its legend, and in its table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment, PackageLoader, StrictUndefined

from gateway.management.console.charts import (
    HEIGHT,
    TOP,
    WIDTH,
    Curve,
    Series,
    line_chart,
    nice_step,
    shares,
    stacked_bars,
)

VALUES = st.lists(st.lists(st.integers(0, 10**15), min_size=3, max_size=3), min_size=1, max_size=10)
PLACES = ("mon", "tue", "wed")


@given(VALUES)
def test_bars_are_as_high_as_their_values_and_stay_within_the_picture(values: list[list[int]]) -> None:
    chart = stacked_bars("t", PLACES, [Series(str(n), each) for n, each in enumerate(values)], str)
    shown = [value for place in range(3) for each in values if (value := each[place]) > 0]
    assert len(chart.bars) == len(shown)
    top = max((sum(each[place] for each in values) for place in range(3)), default=0)
    axis = int(chart.y_ticks[-1].text)
    assert axis >= top
    for bar, value in zip(chart.bars, shown, strict=True):
        assert bar.height == pytest.approx((HEIGHT - TOP) * value / axis, abs=0.01)
        assert 0 <= bar.x <= bar.x + bar.width <= WIDTH
        assert TOP - 0.05 <= bar.y <= bar.y + bar.height <= HEIGHT + 0.05


@given(VALUES)
def test_legend_and_table_add_up_exactly(values: list[list[int]]) -> None:
    chart = stacked_bars("t", PLACES, [Series(str(n), each) for n, each in enumerate(values)], str)
    assert [int(each.total) for each in chart.legend] == [sum(each) for each in values]
    for number, each in enumerate(values, start=1):
        assert sum(int(row[number]) for row in chart.rows) == sum(each)


def test_the_bars_of_a_place_stand_on_one_another() -> None:
    chart = stacked_bars("t", ("a",), [Series("one", [3]), Series("two", [5])], str)
    below, above = chart.bars
    assert below.y == pytest.approx(above.y + above.height, abs=0.02)
    assert [each.says for each in chart.places] == ["a\none: 3\ntwo: 5"]
    assert below.colour != above.colour


def test_no_more_names_stand_under_the_axis_than_have_room() -> None:
    chart = stacked_bars("t", [str(n) for n in range(400)], [Series("one", [1] * 400)], str)
    assert 2 <= len(chart.x_ticks) <= 6
    assert [tick.text for tick in chart.x_ticks[:2]] == ["0", "67"]


def test_a_curve_has_a_gap_where_there_is_no_value() -> None:
    values = [1.0, 2.0, None, 4.0]
    chart = line_chart("t", ("a", "b", "c", "d"), [Curve("one", values, 0), Curve("two", [None] * 4, 1)], str)
    (line,) = chart.lines
    assert line.path.count("M") == 2
    assert line.path.count("L") == 1
    assert [row[0] for row in chart.rows] == ["a", "b", "d"]
    assert chart.places[2].says == "c\none: None\ntwo: None"
    assert [each.name for each in chart.legend] == ["one", "two"]


def test_nothing_is_a_picture_too() -> None:
    for chart in (
        stacked_bars("t", (), [], str),
        stacked_bars("t", ("a",), [Series("one", [0])], str),
        line_chart("t", ("a",), [Curve("one", [None], 0)], str),
    ):
        assert chart.bars == chart.lines == chart.rows == ()
        assert [tick.text for tick in chart.y_ticks] == ["0", "1"]


@given(st.integers(1, 2**63) | st.floats(1e-6, 1e12))
def test_an_axis_has_a_few_round_marks(largest: float) -> None:
    step = nice_step(largest)
    assert 1 <= largest / step <= 4.0001 or step == 1
    assert f"{step:.0e}"[0] in "125"


def test_shares_fill_the_bar_as_far_as_they_go() -> None:
    chart = shares("t", [("held", 1), ("none", 0), ("free", 2)], str, of=4, rest="else")
    held, free = chart.bars
    assert (held.x, held.width, free.x, free.width) == (0, WIDTH / 4, WIDTH / 4, WIDTH / 2)
    assert (held.colour, free.colour) == ("c0", "c2"), "a colour stays with its part"
    assert [(each.name, each.total) for each in chart.legend] == [
        ("held", "1"),
        ("none", "0"),
        ("free", "2"),
        ("else", "1"),
    ]


def test_names_are_written_out_as_text() -> None:
    """A tenant chooses its name, and a model's file its own."""
    environment = Environment(
        loader=PackageLoader("gateway.management.console"), autoescape=True, undefined=StrictUndefined
    )
    template = environment.from_string('{% import "charts.html" as c %}{{ c.chart(a) }}{{ c.shares(b) }}')
    evil = "<script>&\"'"
    html = template.render(a=stacked_bars(evil, (evil,), [Series(evil, [1])], str), b=shares(evil, [(evil, 1)], str))
    assert "<script" not in html
    assert "style" not in html
    assert "&lt;script&gt;&amp;&#34;&#39;" in html
