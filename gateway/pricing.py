"""What a token costs, in integer nanodollars (1e-9 dollar)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

NANODOLLARS_PER_TOKEN = 1000
"""Of a price of one dollar per million tokens."""


@dataclass(frozen=True, slots=True)
class Price:
    """Nanodollars of one token of a prompt, and of one of an answer."""

    prompt: int
    completion: int

    def of(self, prompt_tokens: int, completion_tokens: int) -> int:
        return self.prompt * prompt_tokens + self.completion * completion_tokens


FREE = Price(0, 0)


def nanodollars_per_token(dollars_per_million: Decimal) -> int:
    """
    Raises:
        ValueError: negative, or not a whole number of nanodollars a token (a multiple of 0.001 dollars per million).
    """
    nanodollars = dollars_per_million * NANODOLLARS_PER_TOKEN
    if not nanodollars.is_finite() or nanodollars < 0 or nanodollars != nanodollars.to_integral_value():
        raise ValueError("a price is a multiple of 0.001 dollars per million tokens, not below 0")
    return int(nanodollars)


def price_list(stated: Mapping[str, Sequence[Decimal]]) -> dict[str, Price]:
    """By model, from (prompt, completion) in dollars per million tokens."""
    return {model: Price(*map(nanodollars_per_token, prices)) for model, prices in stated.items()}
