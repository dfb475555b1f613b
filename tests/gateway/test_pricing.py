"""Prices are whole nanodollars a token."""

from decimal import Decimal

import pytest

from gateway.pricing import Price, nanodollars_per_token, price_list


@pytest.mark.parametrize(("dollars", "nanodollars"), [("0", 0), ("0.001", 1), ("0.15", 150), ("60", 60_000)])
def test_a_price_per_million_is_nanodollars_a_token(dollars: str, nanodollars: int) -> None:
    assert nanodollars_per_token(Decimal(dollars)) == nanodollars


@pytest.mark.parametrize("dollars", ["-1", "0.0005", "NaN", "Infinity"])
def test_what_is_no_price(dollars: str) -> None:
    with pytest.raises(ValueError, match="price"):
        nanodollars_per_token(Decimal(dollars))


def test_of_a_request() -> None:
    assert price_list({"m": (Decimal("0.1"), Decimal("0.4"))}) == {"m": Price(100, 400)}
    assert Price(100, 400).of(10, 5) == 3_000
