"""Formats of figures, and the time range of a page."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.http.errors import APIError
from gateway.management.console.filters import typed_fields, window_query
from gateway.management.console.formatting import ago, duration, money, percent, short, short_money, whole
from gateway.management.console.forms import Form

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("milliseconds", "spelt"),
    [
        (None, "–"),
        (0, "0 ms"),
        (0.00002, "1 µs"),
        (0.04, "40 µs"),
        (1, "1 ms"),
        (999, "999 ms"),
        (1240, "1.24 s"),
        (59_900, "59.9 s"),
        (200_000, "3 min 20 s"),
        (3_600_000, "60 min 0 s"),
    ],
)
def test_durations(milliseconds: float | None, spelt: str) -> None:
    assert duration(milliseconds) == spelt


def test_money_and_counts_are_exact_and_marks_of_an_axis_short() -> None:
    assert (whole(2**60 + 1), money(2**60 + 1)) == ("1,152,921,504,606,846,977", "$1152921504.606846977")
    assert [short(each) for each in (0, 999, 1500, 2_000_000, 3 * 10**15)] == ["0", "999", "1.5k", "2M", "3P"]
    assert [short_money(each) for each in (0, 20, 10**9, 2_500 * 10**9)] == ["$0", "$2e-08", "$1", "$2500"]
    assert (percent(1, 3), percent(0, 0)) == ("33.3 %", "–")


@pytest.mark.parametrize(
    ("asked", "window"),
    [
        ({}, ("2026-03-01T12:00:00.000000Z", "2026-03-02T12:00:00.000000Z")),
        ({"window": "hour"}, ("2026-03-02T11:00:00.000000Z", "2026-03-02T12:00:00.000000Z")),
        ({"start": "2026-01-01T00:00"}, ("2026-01-01T00:00:00Z", None)),
        ({"end": "2026-01-02T00:00"}, ("2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00Z")),
        ({"start": "2026-01-01T00:00:01.5Z", "end": "x"}, ("2026-01-01T00:00:01.5Z", "x")),
    ],
)
def test_a_typed_window_overrides_the_chosen_one(asked: dict[str, str], window: tuple[str, str | None]) -> None:
    query = window_query(Form(tuple(asked.items())), NOW, "day")
    assert (query["start"], query.get("end")) == window


@pytest.mark.parametrize(("asked", "field"), [({"window": "age"}, "window"), ({"end": "x"}, "end")])
def test_a_window_that_cannot_be_is_named(asked: dict[str, str], field: str) -> None:
    with pytest.raises(APIError) as refused:
        window_query(Form(tuple(asked.items())), NOW, "day")
    assert refused.value.param == field


def test_moments_are_shown_again_as_their_fields_show_them() -> None:
    form = Form((("start", "2026-01-01T00:00:00.000000Z"), ("model", "m"), ("tier", "")))
    assert typed_fields(form, "start", "model", "tier") == {"start": "2026-01-01T00:00", "model": "m"}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-5, "now"),
        (0, "now"),
        (1, "1 s ago"),
        (119, "119 s ago"),
        (120, "2 min ago"),
        (7200, "2 h ago"),
        (432_000, "5 days ago"),
    ],
)
def test_how_long_ago_a_moment_was(seconds: int, shown: str) -> None:
    assert ago((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == shown
