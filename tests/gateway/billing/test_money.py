"""Money becomes text and back without losing a nanodollar."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.billing.errors import InvalidAmount, InvalidMonth
from gateway.billing.money import MAX_NANODOLLARS, dollars, dollars_per_million, parse_dollars
from gateway.billing.month import Month


@pytest.mark.parametrize(
    ("nanodollars", "text"),
    [
        (0, "0.00"),
        (1, "0.000000001"),
        (12_500_000_000, "12.50"),
        (-10_000_000, "-0.01"),
        (-1, "-0.000000001"),
        (2**63, "9223372036.854775808"),
    ],
)
def test_dollars(nanodollars: int, text: str) -> None:
    assert dollars(nanodollars) == text


def test_a_price_is_shown_per_million_tokens() -> None:
    assert dollars_per_million(1) == "0.001"
    assert dollars_per_million(150) == "0.15"


@given(st.integers(-MAX_NANODOLLARS, MAX_NANODOLLARS))
def test_what_is_written_is_read_again(nanodollars: int) -> None:
    assert parse_dollars(dollars(nanodollars)) == nanodollars


@pytest.mark.parametrize(
    "text", ["", "a", "1e9", "nan", ".5", "1.", "1.0000000001", "+1", "1_0", "٣", "9007199.254740992"]
)
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(InvalidAmount):
        parse_dollars(text)


def test_a_month_ends_where_the_next_starts() -> None:
    december = Month.parse("2026-12")
    assert december.start == datetime(2026, 12, 1, tzinfo=UTC)
    assert december.end == Month.parse("2027-01").start
    assert december.plus(-12) == Month.parse("2025-12")
    assert Month(2000, 3).plus(-12) == Month(2000, 1)
    assert str(Month(2026, 3)) == "2026-03"


def test_a_month_is_that_of_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert Month.of(datetime(2026, 12, 1, 8, 59, tzinfo=tokyo)) == Month(2026, 11)


@given(st.integers(2001, 9000), st.integers(1, 12), st.integers(-12, 12))
def test_months_count(year: int, number: int, months: int) -> None:
    month = Month(year, number)
    assert month.plus(months).plus(-months) == month
    assert (month.plus(months) > month) == (months > 0)


@pytest.mark.parametrize("text", ["", "2026", "2026-13", "2026-00", "1999-12", "2026-1", "2026-12-01", "²026-12"])
def test_what_is_no_month(text: str) -> None:
    with pytest.raises(InvalidMonth):
        Month.parse(text)
