"""Invoices as values, and the computation of their lines. No store and no clock.

One rule makes every line: for each key (month of the usage, model, class, price version, adapter), the usage minus what
final invoices have charged. For the invoice's own month that is all of its usage. For an earlier month with a final
invoice it is the late usage, an adjustment. An earlier month without a final invoice is left to its own invoice. Every
event is thus on one invoice, in whatever order events arrive and months are closed.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum

from gateway.billing.errors import BooksDiffer
from gateway.billing.month import Month
from gateway.billing.payable import Payable, payable
from gateway.billing.prices import Price, PriceVersion, multiplied, split_version
from gateway.billing.terms import NO_TERMS, InvoiceTerms
from gateway.billing.usage import DIGEST_MODULUS, NOTHING, LineKey, UsageSum


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """Tokens at their unit prices (`price`, nanodollars a token). Their products add up to `usage.cost_nanodollars`
    exactly."""

    key: LineKey
    usage: UsageSum
    price: Price

    @property
    def amount_nanodollars(self) -> int:
        """Amount of the line."""
        return self.usage.cost_nanodollars


@dataclass(frozen=True, slots=True)
class Statement:
    """A tenant's charges for a month: lines of this month, and adjustments for earlier ones."""

    tenant_id: str
    tenant_name: str
    month: Month
    lines: tuple[InvoiceLine, ...]

    @property
    def total_nanodollars(self) -> int:
        """Sum of all lines."""
        return sum(line.amount_nanodollars for line in self.lines)

    @property
    def events(self) -> int:
        """Number of usage events on all lines."""
        return sum(line.usage.events for line in self.lines)

    @property
    def digest(self) -> str:
        """Digest of all events, as 32 hexadecimal digits."""
        return f"{sum(line.usage.digest for line in self.lines) % DIGEST_MODULUS:032x}"


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """A line whose numbers do not add up. Nothing is invoiced while there is one."""

    key: LineKey
    problem: str

    def __str__(self) -> str:
        key = self.key
        model = f"{key.served_model}, {key.adapter_id}" if key.adapter_id else key.served_model
        return f"{key.usage_month}, {model}, {key.tier_served}, {key.price_version}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Draft:
    """A statement that can still change. `open_months`: earlier months with usage and without an invoice. `terms`: of a
    final invoice that was made now."""

    statement: Statement
    discrepancies: tuple[Discrepancy, ...]
    open_months: tuple[Month, ...]
    terms: InvoiceTerms = NO_TERMS

    @property
    def payable(self) -> Payable:
        """The amount that would be paid."""
        return payable(self.statement.total_nanodollars, self.terms.tax_rate)

    def check(self) -> None:
        """Check that all lines add up.

        Raises:
            BooksDiffer: a line does not add up.
        """
        if self.discrepancies:
            more = f" (and {len(self.discrepancies) - 1} more)" if len(self.discrepancies) > 1 else ""
            raise BooksDiffer(f"{self.discrepancies[0]}{more}")


@dataclass(frozen=True, slots=True)
class CreditNote:
    """An amount taken back from an invoice. `line`: number of the line, from 1; None: the whole invoice."""

    number: str
    invoice_number: str
    line: int | None
    amount_nanodollars: int
    reason: str
    created_at: datetime


class InvoiceStatus(StrEnum):
    """The status of a final invoice, as Stripe has them. A draft is none of these."""

    OPEN = "open"
    PAID = "paid"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of an open invoice: it is paid, or void. `amount_cents`: paid; 0 of a void invoice. `note`: reference of
    the payment, or the reason."""

    status: InvoiceStatus
    amount_cents: int
    note: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Invoice:
    """A final statement. Its lines and terms do not change; credit notes and one settlement can be added to it.

    `due_date`: the last day of the payment period; None: none is stated. `terms.payment_days` is not kept.
    """

    number: str
    statement: Statement
    finalised_at: datetime
    credit_notes: tuple[CreditNote, ...] = ()
    terms: InvoiceTerms = NO_TERMS
    due_date: date | None = None
    settlement: Settlement | None = None

    @property
    def status(self) -> InvoiceStatus:
        """Open until it is settled."""
        return InvoiceStatus.OPEN if self.settlement is None else self.settlement.status

    @property
    def credited_nanodollars(self) -> int:
        """Sum of the credit notes."""
        return sum(note.amount_nanodollars for note in self.credit_notes)

    @property
    def due_nanodollars(self) -> int:
        """Exact sum of the lines less the credit notes, before rounding, tax and payment."""
        return self.statement.total_nanodollars - self.credited_nanodollars

    @property
    def amounts(self) -> "PayableAmounts":
        """Its amounts in cents."""
        paid = 0 if self.settlement is None else self.settlement.amount_cents
        void = self.status is InvoiceStatus.VOID
        exact = (self.statement.total_nanodollars, self.credited_nanodollars)
        return payable_amounts(*exact, self.terms.tax_rate, paid_cents=paid, void=void)


@dataclass(frozen=True, slots=True)
class PayableAmounts:
    """Whole cents of an invoice: as it was issued, and what credit notes, payment and voiding have left of it.

    `due_cents`: 0 of a void invoice; below 0, if a credit note came after the payment: to be paid back.
    """

    issued: Payable
    credited_cents: int
    paid_cents: int
    due_cents: int


def payable_amounts(
    total_nanodollars: int, credited_nanodollars: int, tax_rate: int, *, paid_cents: int = 0, void: bool = False
) -> PayableAmounts:
    """The amounts in cents of the exact sums of the lines and of the credit notes."""
    issued = payable(total_nanodollars, tax_rate)
    left = payable(total_nanodollars - credited_nanodollars, tax_rate)
    due = 0 if void else left.total_cents - paid_cents
    return PayableAmounts(issued, issued.total_cents - left.total_cents, paid_cents, due)


@dataclass(frozen=True, slots=True)
class ComputedLines:
    """Lines to be charged, and discrepancies."""

    lines: tuple[InvoiceLine, ...]
    discrepancies: tuple[Discrepancy, ...]


def compute_lines(
    used: Mapping[LineKey, UsageSum], charged: Mapping[LineKey, UsageSum], versions: Iterable[PriceVersion]
) -> ComputedLines:
    """Lines for `used` minus `charged`, at the prices of `versions`."""
    by_id = {version.id: version for version in versions}
    lines: list[InvoiceLine] = []
    discrepancies: list[Discrepancy] = []
    for key in sorted(used.keys() | charged.keys()):
        rest = used.get(key, NOTHING) - charged.get(key, NOTHING)
        if rest == NOTHING:
            continue
        line = _line(key, rest, by_id.get(split_version(key.price_version)[0]))
        if isinstance(line, InvoiceLine):
            lines.append(line)
        else:
            discrepancies.append(line)
    return ComputedLines(tuple(lines), tuple(discrepancies))


def select_months(
    sums: Mapping[LineKey, UsageSum], month: Month, final_months: Set[Month]
) -> tuple[Mapping[LineKey, UsageSum], tuple[Month, ...]]:
    """The part of the sums up to a month that belongs on its invoice, and the earlier months that await their own."""
    mine = {key: usage for key, usage in sums.items() if key.usage_month == month or key.usage_month in final_months}
    awaiting = {key.usage_month for key in sums.keys() - mine.keys()}
    return mine, tuple(sorted(awaiting))


def add_up(sums: Iterable[tuple[LineKey, UsageSum]]) -> Mapping[LineKey, UsageSum]:
    """The sums by key."""
    added: dict[LineKey, UsageSum] = {}
    for key, usage in sums:
        added[key] = added.get(key, NOTHING) + usage
    return added


def _line(key: LineKey, rest: UsageSum, version: PriceVersion | None) -> InvoiceLine | Discrepancy:
    if min(rest.counts) < 0:
        return Discrepancy(key, "there is less usage than was invoiced")
    if rest.events == 0:
        return Discrepancy(key, "events that were invoiced have changed")
    price = None if version is None else _price(key, version)
    if price is None:
        return Discrepancy(key, "no such price version of this model")
    # `Price.of` is for one request, whose cached tokens are part of its prompt; here each kind is separate.
    amount = (
        price.prompt * rest.input_tokens
        + price.cached_prompt * rest.cached_tokens
        + price.completion * rest.output_tokens
    )
    if amount != rest.cost_nanodollars:
        return Discrepancy(key, f"the tokens cost {amount} nanodollars, their events {rest.cost_nanodollars}")
    return InvoiceLine(key, rest, price)


def _price(key: LineKey, version: PriceVersion) -> Price | None:
    """The unit prices of a line: an adapter's own, those of its base model with a multiplier, or the model's. None: the
    version is of something else."""
    multiplier = split_version(key.price_version)[1]
    price = version.price(key.tier_served)
    if key.adapter_id and version.terms.model == key.adapter_id:
        return price if multiplier == 1 else None
    if version.terms.model != key.served_model or (multiplier != 1 and not key.adapter_id):
        return None
    return multiplied(price, multiplier)
