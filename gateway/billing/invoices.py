"""Invoices as values, and the computation of their lines. No store and no clock.

One rule makes every line: for each key (month of the usage, model, class, price version), the usage minus what final
invoices have charged. For the invoice's own month that is all of its usage. For an earlier month with a final invoice
it is the late usage, an adjustment. An earlier month without a final invoice is left to its own invoice. Every event is
thus on one invoice, in whatever order events arrive and months are closed.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime

from gateway.billing.errors import BooksDiffer
from gateway.billing.month import Month
from gateway.billing.prices import Price, PriceVersion
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
        return f"{key.usage_month}, {key.served_model}, {key.tier_served}, {key.price_version}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Draft:
    """A statement that can still change. `open_months`: earlier months with usage and without an invoice."""

    statement: Statement
    discrepancies: tuple[Discrepancy, ...]
    open_months: tuple[Month, ...]

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


@dataclass(frozen=True, slots=True)
class Invoice:
    """A final statement. Only credit notes can be added to it."""

    number: str
    statement: Statement
    finalised_at: datetime
    credit_notes: tuple[CreditNote, ...] = ()

    @property
    def credited_nanodollars(self) -> int:
        """Sum of the credit notes."""
        return sum(note.amount_nanodollars for note in self.credit_notes)

    @property
    def due_nanodollars(self) -> int:
        """Amount that is owed after the credit notes."""
        return self.statement.total_nanodollars - self.credited_nanodollars


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
        line = _line(key, rest, by_id.get(key.price_version))
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
    if version is None or version.terms.model != key.served_model:
        return Discrepancy(key, "no such price version of this model")
    price = version.price(key.tier_served)
    # `Price.of` is for one request, whose cached tokens are part of its prompt; here each kind is separate.
    amount = (
        price.prompt * rest.input_tokens
        + price.cached_prompt * rest.cached_tokens
        + price.completion * rest.output_tokens
    )
    if amount != rest.cost_nanodollars:
        return Discrepancy(key, f"the tokens cost {amount} nanodollars, their events {rest.cost_nanodollars}")
    return InvoiceLine(key, rest, price)
