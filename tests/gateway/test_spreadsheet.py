"""Exports contain only text and numbers for a spreadsheet, never formulas."""

import csv
import io
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.spreadsheet import csv_text, guarded

STARTS = "=+-@\t\r\n＝＋－＠"


def cells(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


@given(texts=st.lists(st.tuples(st.sampled_from(["", *STARTS]), st.text()).map("".join), min_size=2, max_size=5))
@example(texts=["=1", "a\r=1", "-1+1", "+1-cmd|'/C calc'!A0", "@SUM(1)", "-", "٣", "-٣", "1\n"])
def test_no_cell_begins_like_a_formula_and_none_is_lost(texts: list[str]) -> None:
    columns = [f"c{index}" for index in range(len(texts))]
    head, row = cells(csv_text(columns, [dict(zip(columns, texts, strict=True))]))
    assert head == columns
    for text, cell in zip(texts, row, strict=True):
        assert cell == text or cell == f"'{text}"
        if cell.startswith(tuple(STARTS)):
            assert cell.isascii()
            Decimal(cell)
            assert set(cell[1:]) <= set("0123456789."), "a number, and nothing that is computed"


@given(number=st.integers() | st.decimals(allow_nan=False, allow_infinity=False).map(lambda each: f"{each:f}"))
def test_numbers_stay_numbers(number: int | str) -> None:
    assert guarded(number) == number


@given(name=st.text(min_size=1), start=st.sampled_from(STARTS))
def test_names_of_columns_are_guarded_too(name: str, start: str) -> None:
    assert guarded(start + "x" + name) == f"'{start}x{name}"


def test_what_a_row_lacks_is_empty_and_what_no_column_names_is_left_out() -> None:
    assert csv_text(["a", "b"], [{"a": 1, "c": 2}, {"b": None}]) == "a,b\r\n1,\r\n,\r\n"


@pytest.mark.parametrize("value", [None, True, 1.5])
def test_what_is_no_text_is_as_it_is(value: object) -> None:
    assert guarded(value) is value
