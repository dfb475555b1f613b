"""Prices are exact in every class but that of batches, or refused with the nearest ones that are."""

import math
import re
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.billing.errors import InvalidPrice
from gateway.billing.prices import BATCH_TIER, Price, PriceTerms, PriceVersion, parse_terms
from tests.support.billing import utc

START = utc("2026-11-01")
TOKENS = st.integers(0, 10**7)
UNIT_PRICES = st.integers(0, 10**6)
MULTIPLIERS = st.dictionaries(
    st.sampled_from(["premium", "standard", "batch"]), st.decimals(0, 10, places=2, allow_nan=False)
)
PRICES = st.tuples(UNIT_PRICES, UNIT_PRICES, UNIT_PRICES).map(lambda each: Price("v", *each))


def terms(input: str, output: str = "0", cached: str | None = None, **multipliers: str) -> PriceTerms:
    return PriceTerms.from_dollars(
        "m",
        Decimal(input),
        Decimal(output),
        cached_input=None if cached is None else Decimal(cached),
        multipliers={tier: Decimal(each) for tier, each in multipliers.items()},
    )


def price(stated: PriceTerms, tier: str) -> Price:
    return PriceVersion("v", START, stated).price(tier)


def test_dollars_per_million_are_nanodollars_a_token() -> None:
    stated = terms("0.15", "0.60", cached="0.075")
    assert price(stated, "standard") == Price("v", 150, 75, 600)
    assert price(stated, "premium") == Price("v", 450, 225, 1800)
    assert price(terms("0.15", "0.60"), "standard") == Price("v", 150, 150, 600)


def test_a_class_without_a_multiplier_pays_the_plain_price() -> None:
    stated = terms("0.15", "0.60", batch="0.5", premium="2")
    assert price(stated, "batch") == Price("v", 75, 75, 300)
    assert price(stated, "premium").prompt == 300
    assert price(stated, "unheard-of") == price(stated, "standard")


def test_a_price_of_nothing_is_said() -> None:
    assert price(terms("0", "0"), "premium") == Price("v", 0, 0, 0)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (lambda: terms("0.1505"), "input: .* 0.15 or 0.151 dollars"),
        (lambda: terms("0.15", "0.0001"), "output: .* 0.00 or 0.001 dollars"),
        (lambda: terms("0.15", cached="0.0755"), "cached_input: .* 0.075 or 0.076 dollars"),
        (lambda: terms("0.15", "0.60", cached="0.075", premium="1.5"), "cached_input: .* 0.074 or 0.076 dollars"),
        (lambda: terms("0.15", "0.60", premium="1.125"), "input: .* 0.144 or 0.152 dollars"),
        (lambda: terms("0.15", cached="0.151"), "cached_input: .*0.151.*input.*0.15"),
        (lambda: terms("-0.001"), "input: must be from 0"),
        (lambda: terms("10000.001"), "input: .* 0 to 10000.00"),
        (lambda: terms("10000", premium="1.001"), "input: .*10010.00 .*premium.* 10000.00"),
        (lambda: terms("1", "5000"), "output: .*15000.00 .*premium"),
        (lambda: terms("20", premium="1000"), "input: .*20000.00 .*premium"),
        (lambda: terms("NaN"), "input: "),
        (lambda: terms("Infinity"), "input: "),
        (lambda: terms("1e999999999"), "input: "),
        (lambda: terms("1e-999999999"), "input: "),
        (lambda: terms("0.1500000000000000000000000000000000001"), "input: "),
        (lambda: terms("1", premium="-1"), "multiplier premium"),
        (lambda: terms("1", premium="1001"), "multiplier premium"),
        (lambda: terms("1", premium="0.0000001"), "multiplier premium"),
        (lambda: terms("1", premium="NaN"), "multiplier premium"),
        (lambda: terms("1", **{"A b": "1"}), "multiplier: "),
        (lambda: PriceTerms("", 1, 1, 1), "model's name"),
        (lambda: PriceTerms("m", 1, 1, 1, {"premium": Decimal("1.5")}), "input: .* 0.00 or 0.002 dollars"),
    ],
)
def test_refusals_name_the_field_and_the_nearest_price(stated: object, message: str) -> None:
    with pytest.raises(InvalidPrice, match=message):
        stated()  # type: ignore[operator]


def test_what_an_earlier_program_accepted_can_still_be_read() -> None:
    assert PriceTerms("m", 10**9, 10**9, 10**9, {"premium": Decimal(1000)}).input == 10**9


def test_a_declaration_has_two_prices_or_three() -> None:
    assert parse_terms("m", [Decimal("0.15"), Decimal("0.60")]) == terms("0.15", "0.60")
    assert parse_terms("m", [Decimal("0.15"), Decimal("0.05"), Decimal("0.60")]) == terms("0.15", "0.60", "0.05")
    for count in (0, 1, 4):
        with pytest.raises(InvalidPrice, match=r"\bm\b"):
            parse_terms("m", [Decimal(1)] * count)


@given(st.decimals(0, 1000, places=4), st.decimals(0, 1000, places=4), MULTIPLIERS)
def test_accepted_prices_are_exact(input: Decimal, output: Decimal, multipliers: dict[str, Decimal]) -> None:
    try:
        stated = PriceTerms.from_dollars("m", input, output, multipliers=multipliers)
    except InvalidPrice:
        steps = [each * 1000 * factor for each in (input, output) for factor in (1, *multipliers.values())]
        assert any(each % 1 for each in steps)
        return
    for tier in ("premium", "standard", "batch"):
        factor = Fraction(stated.multipliers.get(tier, Decimal(1)))
        exact = Fraction(input) * 1000 * factor, Fraction(output) * 1000 * factor
        found = price(stated, tier).prompt, price(stated, tier).completion
        assert found == (tuple(map(math.floor, exact)) if tier == BATCH_TIER else exact)


@given(st.integers(0, 10**6), MULTIPLIERS)
def test_the_nearest_prices_are_accepted(thousandths: int, multipliers: dict[str, Decimal]) -> None:
    stated = Decimal(thousandths).scaleb(-4)
    try:
        PriceTerms.from_dollars("m", stated, Decimal(0), multipliers=multipliers)
        assume(False)
    except InvalidPrice as refusal:
        [nearest] = re.findall(r"([0-9.]+) or ([0-9.]+)", str(refusal))
    below, above = map(Decimal, nearest)
    assert below < stated < above
    for each in (below, above):
        PriceTerms.from_dollars("m", each, Decimal(0), multipliers=multipliers)


@given(PRICES, TOKENS, TOKENS, TOKENS)
def test_a_request_costs_its_tokens(price: Price, fresh: int, cached: int, answered: int) -> None:
    cost = price.of(fresh + cached, cached, answered)
    assert cost == fresh * price.prompt + cached * price.cached_prompt + answered * price.completion


@given(PRICES, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)
def test_tokens_add_cost(price: Price, prompt: int, cached: int, answered: int, more: int, more_answered: int) -> None:
    cached = min(cached, prompt)
    assert price.of(prompt + more, cached, answered + more_answered) >= price.of(prompt, cached, answered)


@given(st.integers(0, 10**6), st.integers(0, 10**6), TOKENS, TOKENS)
def test_a_hold_at_the_price_of_input_covers_what_is_cached(one: int, other: int, prompt: int, cached: int) -> None:
    price = Price("v", max(one, other), min(one, other), 0)
    assert price.of(prompt, min(cached, prompt), 0) <= price.of(prompt, 0, 0)


@pytest.mark.parametrize("tokens", [(1, 2, 0), (-1, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_what_is_no_request_has_no_cost(tokens: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="no request"):
        Price("v", 1, 1, 1).of(*tokens)
