"""Money as integer nanodollars (1e-9 dollar), with exact conversion to and from text."""

import re
from collections.abc import Iterable

from gateway.billing.errors import InvalidAmount

NANODOLLARS = 10**9
"""Nanodollars in a dollar."""
NANODOLLARS_PER_CENT = NANODOLLARS // 100
MAX_NANODOLLARS = 2**53 - 1
"""Largest stated amount: 9 million dollars, which Redis' Lua still counts exactly."""

_DOLLARS = re.compile(r"(-?)([0-9]{1,12})(?:\.([0-9]{1,9}))?")


def dollars(nanodollars: int) -> str:
    """Dollars with two decimals or more if necessary: `12.50`, `-0.000000001`."""
    whole, fraction = divmod(abs(nanodollars), NANODOLLARS)
    decimals = f"{fraction:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if nanodollars < 0 else ''}{whole}.{decimals}"


def to_cents(nanodollars: int) -> int:
    """Whole cents, rounded half up: half a cent is rounded away from zero, also of a negative amount."""
    cents = (abs(nanodollars) + NANODOLLARS_PER_CENT // 2) // NANODOLLARS_PER_CENT
    return -cents if nanodollars < 0 else cents


def cents(nanodollars: int) -> str:
    """Dollars with two decimals, rounded by `to_cents`: `12.50`."""
    return dollars(to_cents(nanodollars) * NANODOLLARS_PER_CENT)


def decimals_of(amounts: Iterable[int]) -> int:
    """The decimals that exact amounts in nanodollars need in dollars, at least two: those of their column."""
    return max((len(dollars(amount).partition(".")[2]) for amount in amounts), default=2)


def at_decimals(nanodollars: int, decimals: int) -> str:
    """The exact amount in dollars with at least `decimals` decimals."""
    whole, _, fraction = dollars(nanodollars).partition(".")
    return f"{whole}.{fraction.ljust(decimals, '0')}"


def dollars_per_million(nanodollars_per_token: int) -> str:
    """Dollars per million tokens."""
    return dollars(nanodollars_per_token * 10**6)


def parse_dollars(text: str) -> int:
    """Nanodollars of a text in dollars.

    Raises:
        InvalidAmount: not dollars with at most nine decimals, or beyond `MAX_NANODOLLARS` in either direction.
    """
    match = _DOLLARS.fullmatch(text)
    if match is None:
        raise InvalidAmount("an amount is dollars with at most nine decimals, as in 12.50")
    sign, whole, decimals = match.groups()
    nanodollars = int(whole) * NANODOLLARS + int((decimals or "").ljust(9, "0"))
    if nanodollars > MAX_NANODOLLARS:
        raise InvalidAmount(f"an amount is at most {dollars(MAX_NANODOLLARS)} dollars")
    return -nanodollars if sign else nanodollars
