"""Prices of tokens: price versions, and their exact integer prices in each class of service.

A version states nanodollars a token for input, for cached input and for output, and multipliers of classes; a class
without a multiplier has the plain price. All products are whole nanodollars, so the cost of a request and of a month is
exactly tokens times unit price.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType

from gateway.billing.errors import InvalidPrice
from gateway.billing.money import dollars_per_million

NANODOLLARS_PER_TOKEN = 1000
"""Price of a token at one dollar per million tokens."""
MAX_NANODOLLARS_PER_TOKEN = 10**7
"""Largest price that can be stated, in the dearest class: 10,000 dollars per million tokens. At this price a request of
900 million tokens is still an amount that limits count (`admission.model.MAX_AMOUNT`)."""
FORMER_MAX_NANODOLLARS_PER_TOKEN = 10**9
"""Largest price before multipliers in versions that earlier programs have accepted."""
MAX_MULTIPLIER = 1000
MULTIPLIER_DECIMALS = 6
BATCH_TIER = "batch"
"""The class of batches. Its prices are rounded down to whole nanodollars, so that any price may be halved."""
DEFAULT_MULTIPLIERS: Mapping[str, Decimal] = MappingProxyType(
    {"premium": Decimal(3), "standard": Decimal(1), BATCH_TIER: Decimal("0.5")}
)
"""Multipliers of a version that states no others."""
PRICED = ("input", "cached_input", "output")

MULTIPLIED = "*"
"""In the version of a multiplied price: between the id of the base model's version, and the multiplier."""

_MULTIPLIED = re.compile(r"(.+Z)\*([0-9]{1,4}(?:\.[0-9]{1,6})?)", re.DOTALL)
_TIER = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_MODEL_CHARS = 128
_MAX_EXPONENT = 12


@dataclass(frozen=True, slots=True)
class Price:
    """Unit prices in one class of service, in nanodollars a token. `version`: id of the price version."""

    version: str
    prompt: int
    cached_prompt: int
    completion: int

    def of(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
        """Cost of a request. `cached_tokens`: the prompt's tokens that were in the prefix cache.

        Raises:
            ValueError: a number is negative, or more tokens are cached than the prompt has.
        """
        if not 0 <= cached_tokens <= prompt_tokens or completion_tokens < 0:
            raise ValueError(
                f"no request: {prompt_tokens} tokens, {cached_tokens} cached, {completion_tokens} answered"
            )
        fresh = self.prompt * (prompt_tokens - cached_tokens)
        return fresh + self.cached_prompt * cached_tokens + self.completion * completion_tokens


def multiplied(price: Price, multiplier: Decimal) -> Price:
    """The price of an adapter at `multiplier` times that of its base model. Unit prices are rounded down to whole
    nanodollars, and bounded by `MAX_NANODOLLARS_PER_TOKEN` where they grow. The version names both, so that the same
    unit prices can be computed from it at any time (`split_version`)."""
    if multiplier == 1:
        return price
    factor = Fraction(multiplier)

    def unit(nanodollars: int) -> int:
        product = int(nanodollars * factor)
        return product if product <= nanodollars else max(nanodollars, min(product, MAX_NANODOLLARS_PER_TOKEN))

    units = (unit(price.prompt), unit(price.cached_prompt), unit(price.completion))
    return Price(joined_version(price.version, multiplier), *units)


def joined_version(version: str, multiplier: Decimal) -> str:
    """The version of a price that is `multiplier` times that of a price version."""
    return version if multiplier == 1 else f"{version}{MULTIPLIED}{multiplier.normalize():f}"


def split_version(version: str) -> tuple[str, Decimal]:
    """The price version that a request's price was computed from, and the multiplier of its adapter."""
    found = _MULTIPLIED.fullmatch(version)
    return (version, Decimal(1)) if found is None else (found[1], Decimal(found[2]))


@dataclass(frozen=True, slots=True)
class PriceTerms:
    """Unit prices before the multiplier of the class, in nanodollars a token. A class without an entry in `multipliers`
    has 1.

    Cached input is no dearer than other input, as requests are held at the price of the latter.

    Raises:
        InvalidPrice: a value is out of range, or a product, other than that of batches, is not a whole number.
    """

    model: str
    input: int
    cached_input: int
    output: int
    multipliers: Mapping[str, Decimal] = field(default_factory=lambda: DEFAULT_MULTIPLIERS)

    def __post_init__(self) -> None:
        if not (0 < len(self.model) <= _MODEL_CHARS and self.model.isprintable()):
            raise InvalidPrice(f"a model's name is 1 to {_MODEL_CHARS} printable characters")
        for tier, multiplier in self.multipliers.items():
            _check_multiplier(tier, multiplier)
        for name in PRICED:
            _whole(name, Fraction(getattr(self, name)), self.multipliers, FORMER_MAX_NANODOLLARS_PER_TOKEN)
        if self.cached_input > self.input:
            raise InvalidPrice(
                f"cached_input: {dollars_per_million(self.cached_input)} is more than input, "
                f"{dollars_per_million(self.input)} dollars per million tokens"
            )

    @classmethod
    def from_dollars(
        cls,
        model: str,
        input: Decimal,
        output: Decimal,
        *,
        cached_input: Decimal | None = None,
        multipliers: Mapping[str, Decimal] = MappingProxyType({}),
    ) -> "PriceTerms":
        """Terms from dollars per million tokens. `cached_input` None: the price of input. `multipliers` are added to
        the default ones.

        Raises:
            InvalidPrice: as for the class; for a price that is not whole, with the nearest ones that are.
        """
        all_multipliers = {**DEFAULT_MULTIPLIERS, **multipliers}
        for tier, multiplier in all_multipliers.items():
            _check_multiplier(tier, multiplier)
        prices = {"input": input, "cached_input": input if cached_input is None else cached_input, "output": output}
        whole = {
            name: _whole(name, _nanodollars(name, price), all_multipliers, MAX_NANODOLLARS_PER_TOKEN)
            for name, price in prices.items()
        }
        for name, nanodollars in whole.items():
            _check_products(name, nanodollars, all_multipliers)
        return cls(model, **whole, multipliers=MappingProxyType(all_multipliers))


@dataclass(frozen=True, slots=True)
class PriceVersion:
    """The price of a model from `effective_from` (UTC, to the millisecond) until its next version. Immutable."""

    id: str
    effective_from: datetime
    terms: PriceTerms

    def price(self, tier: str) -> Price:
        """The unit prices in a class of service."""
        terms = self.terms
        factor = Fraction(terms.multipliers.get(tier, Decimal(1)))
        return Price(self.id, *(int(getattr(terms, name) * factor) for name in PRICED))


def version_id(model: str, effective_from: datetime) -> str:
    """The id of a version, the same on every replica. Two versions of a model never start together, so it is unique."""
    instant = effective_from.astimezone(UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
    return f"{model}@{instant}Z"


def to_ms(instant: datetime) -> datetime:
    """The instant in UTC, to the millisecond: the precision of every store and of a version's id."""
    return instant.astimezone(UTC).replace(microsecond=instant.microsecond // 1000 * 1000)


def parse_terms(model: str, prices: Sequence[Decimal]) -> PriceTerms:
    """Terms from (input, output) or (input, cached input, output) in dollars per million tokens, as the settings state
    them.

    Raises:
        InvalidPrice: another number of prices, or an invalid one.
    """
    match prices:
        case [input, output]:
            return PriceTerms.from_dollars(model, input, output)
        case [input, cached_input, output]:
            return PriceTerms.from_dollars(model, input, output, cached_input=cached_input)
        case _:
            raise InvalidPrice(f"the prices of {model} are [input, output] or [input, cached input, output]")


def _check_multiplier(tier: str, multiplier: Decimal) -> None:
    if not _TIER.fullmatch(tier):
        raise InvalidPrice("multiplier: a class is named by 1 to 64 lower-case letters, digits and _ -")
    if not (
        multiplier.is_finite() and 0 <= multiplier <= MAX_MULTIPLIER and _decimals(multiplier) <= MULTIPLIER_DECIMALS
    ):
        raise InvalidPrice(
            f"multiplier {tier}: must be from 0 to {MAX_MULTIPLIER} with at most {MULTIPLIER_DECIMALS} decimals"
        )


def _nanodollars(name: str, price: Decimal) -> Fraction:
    """Price of a token, from dollars per million."""
    # Bounded before its conversion to a fraction: 1e-999999999 would fill the memory.
    if not price.is_finite() or price.adjusted() > _MAX_EXPONENT or _decimals(price) > 2 * _MAX_EXPONENT:
        raise InvalidPrice(f"{name}: must be a number of dollars per million tokens, as in 0.15")
    return Fraction(price) * NANODOLLARS_PER_TOKEN


def _check_products(name: str, nanodollars: int, multipliers: Mapping[str, Decimal]) -> None:
    for tier, multiplier in multipliers.items():
        product = int(nanodollars * Fraction(multiplier))
        if product > MAX_NANODOLLARS_PER_TOKEN:
            raise InvalidPrice(
                f"{name}: is {dollars_per_million(product)} dollars per million tokens with the multiplier of {tier}, "
                f"more than {dollars_per_million(MAX_NANODOLLARS_PER_TOKEN)}"
            )


def _whole(name: str, nanodollars: Fraction, multipliers: Mapping[str, Decimal], most: int) -> int:
    """The price as a whole number, at most `most`, if its product with each multiplier is whole too."""
    if not 0 <= nanodollars <= most:
        raise InvalidPrice(f"{name}: must be from 0 to {dollars_per_million(most)} dollars per million tokens")
    whole = (multiplier for tier, multiplier in multipliers.items() if tier != BATCH_TIER)
    step = math.lcm(*(Fraction(multiplier).denominator for multiplier in whole))
    below = math.floor(nanodollars / step) * step
    if nanodollars != below:
        nearest = [price for price in (below, below + step) if price <= most]
        raise InvalidPrice(
            f"{name}: must leave whole nanodollars a token in every class; "
            f"the nearest that does is {' or '.join(map(dollars_per_million, nearest))} dollars per million tokens"
        )
    return int(nanodollars)


def _decimals(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)  # the number is finite
    return max(0, -exponent)
