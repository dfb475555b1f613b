"""Invoices as values, and the reckoning that makes their lines. No store and no clock.

One rule makes every line: of each key (month of the usage, model, class, price version), what was used less what final
invoices have charged already. For the invoice's own month that is all of its usage. For an earlier month that is final
it is what came late, an adjustment. An earlier month that is not final is left to its own invoice. So every event is on
one invoice, whatever the order in which events arrive and months are closed.
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
    """Tokens at their unit prices (`price`, nanodollars a token); they multiply to `usage.cost_nanodollars` exactly."""

    key: LineKey
    usage: UsageSum
    price: Price

    @property
    def amount_nanodollars(self) -> int:
        return self.usage.cost_nanodollars


@dataclass(frozen=True, slots=True)
class Statement:
    """What a tenant owes for a month: this month's lines, and adjustments for earlier ones."""

    tenant_id: str
    tenant_name: str
    month: Month
    lines: tuple[InvoiceLine, ...]

    @property
    def total_nanodollars(self) -> int:
        return sum(line.amount_nanodollars for line in self.lines)

    @property
    def events(self) -> int:
        return sum(line.usage.events for line in self.lines)

    @property
    def digest(self) -> str:
        """Of all events, 32 hexadecimal digits."""
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
    """A statement that still changes. `open_months` are earlier ones with usage and without an invoice."""

    statement: Statement
    discrepancies: tuple[Discrepancy, ...]
    open_months: tuple[Month, ...]

    def check(self) -> None:
        """
        Raises:
            BooksDiffer: some line does not add up.
        """
        if self.discrepancies:
            more = f" (and {len(self.discrepancies) - 1} more)" if len(self.discrepancies) > 1 else ""
            raise BooksDiffer(f"{self.discrepancies[0]}{more}")


@dataclass(frozen=True, slots=True)
class CreditNote:
    """What is taken back of an invoice, or of one of its lines, counted from 1."""

    number: str
    invoice_number: str
    line: int | None
    amount_nanodollars: int
    reason: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Invoice:
    """A statement that is final. Only credit notes are added to it."""

    number: str
    statement: Statement
    finalised_at: datetime
    credit_notes: tuple[CreditNote, ...] = ()

    @property
    def credited_nanodollars(self) -> int:
        return sum(note.amount_nanodollars for note in self.credit_notes)

    @property
    def due_nanodollars(self) -> int:
        return self.statement.total_nanodollars - self.credited_nanodollars


@dataclass(frozen=True, slots=True)
class ComputedLines:
    """What is to be charged, and what does not add up."""

    lines: tuple[InvoiceLine, ...]
    discrepancies: tuple[Discrepancy, ...]


def compute_lines(
    used: Mapping[LineKey, UsageSum], charged: Mapping[LineKey, UsageSum], versions: Iterable[PriceVersion]
) -> ComputedLines:
    """What was used less what was charged, at the prices of `versions`."""
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
    """Of sums of usage up to a month, those that its invoice is about; and the earlier months that await their own."""
    mine = {key: each for key, each in sums.items() if key.usage_month == month or key.usage_month in final_months}
    awaiting = {key.usage_month for key in sums.keys() - mine.keys()}
    return mine, tuple(sorted(awaiting))


def add_up(sums: Iterable[tuple[LineKey, UsageSum]]) -> Mapping[LineKey, UsageSum]:
    """By key."""
    added: dict[LineKey, UsageSum] = {}
    for key, each in sums:
        added[key] = added.get(key, NOTHING) + each
    return added


def _line(key: LineKey, rest: UsageSum, version: PriceVersion | None) -> InvoiceLine | Discrepancy:
    if min(rest.counts) < 0:
        return Discrepancy(key, "there is less usage than was invoiced")
    if rest.events == 0:
        return Discrepancy(key, "events that were invoiced have changed")
    if version is None or version.terms.model != key.served_model:
        return Discrepancy(key, "no such price version of this model")
    price = version.price(key.tier_served)
    # Each kind of token by itself: `Price.of` is for one request, with cached tokens among those of the prompt.
    amount = (
        price.prompt * rest.input_tokens
        + price.cached_prompt * rest.cached_tokens
        + price.completion * rest.output_tokens
    )
    if amount != rest.cost_nanodollars:
        return Discrepancy(key, f"the tokens cost {amount} nanodollars, their events {rest.cost_nanodollars}")
    return InvoiceLine(key, rest, price)
