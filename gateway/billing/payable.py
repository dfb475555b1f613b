"""The amount that is paid, in whole cents, of an exact amount in nanodollars.

The rule: lines stay exact. Their exact sum is rounded once, half up, to the net amount in cents. Tax is the net amount
times the rate, rounded half up. Net and tax add up to the total. After credit notes the same is computed of what is
left, so the effect of all notes together is the difference of two totals, and no cent depends on their number.
"""

from dataclasses import dataclass

from gateway.billing.money import to_cents
from gateway.billing.terms import RATE_UNIT

_HUNDRED_PERCENT = 100 * RATE_UNIT


@dataclass(frozen=True, slots=True)
class Payable:
    """Whole cents. `total_cents` is their sum."""

    net_cents: int
    tax_cents: int

    @property
    def total_cents(self) -> int:
        """Net amount and tax."""
        return self.net_cents + self.tax_cents


def payable(nanodollars: int, tax_rate: int) -> Payable:
    """The payable amount of an exact amount. `tax_rate`: thousandths of a percent."""
    net = to_cents(nanodollars)
    return Payable(net, tax_of(net, tax_rate))


def tax_of(net_cents: int, tax_rate: int) -> int:
    """Tax on a net amount in whole cents, rounded half up (of a negative amount: away from zero)."""
    tax = (abs(net_cents) * tax_rate + _HUNDRED_PERCENT // 2) // _HUNDRED_PERCENT
    return -tax if net_cents < 0 else tax
