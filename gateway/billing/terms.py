"""Terms of an invoice: issuer, bill-to, due date and tax rate. A final invoice keeps those of the moment at which it
was finalised."""

from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal

from gateway.common.party import NO_PARTY, Party

RATE_UNIT = 1000
"""Parts of a percent in which a tax rate is counted: 8.875 % is 8875."""
MAX_TAX_PERCENT = 100


@dataclass(frozen=True, slots=True)
class InvoiceTerms:
    """`payment_days`: days from the date of the invoice to its due date; None: no due date. `tax_rate`: thousandths of
    a percent of the net amount."""

    issuer: Party = NO_PARTY
    bill_to: Party = NO_PARTY
    payment_days: int | None = None
    tax_rate: int = 0

    def billed_to(self, party: Party) -> "InvoiceTerms":
        """The terms for a tenant with this bill-to."""
        return replace(self, bill_to=party)

    def due_date(self, finalised_at: datetime) -> date | None:
        """The due date of an invoice that is finalised at a moment in UTC."""
        return None if self.payment_days is None else finalised_at.date() + timedelta(days=self.payment_days)


NO_TERMS = InvoiceTerms()


def parse_tax_rate(percent: Decimal) -> int:
    """Thousandths of a percent.

    Raises:
        ValueError: not 0 to 100 with at most three decimals.
    """
    if not (percent.is_finite() and 0 <= percent <= MAX_TAX_PERCENT):
        raise ValueError(f"a tax rate is 0 to {MAX_TAX_PERCENT} percent")
    rate = percent * RATE_UNIT
    if rate != rate.to_integral_value():
        raise ValueError("a tax rate has at most three decimals")
    return int(rate)


def percent_text(tax_rate: int) -> str:
    """A rate in percent: `19`, `8.875`."""
    whole, fraction = divmod(tax_rate, RATE_UNIT)
    return f"{whole}.{fraction:03d}".rstrip("0").rstrip(".")
