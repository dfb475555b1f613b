"""Drafts, final invoices and credit notes: from usage and the books to the books."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.billing.books import TenantName, check_text, find_tenant, reading
from gateway.billing.errors import CreditTooLarge, InvalidAmount, MonthIsFinal, MonthIsOpen, UnknownInvoice
from gateway.billing.invoice_rows import (
    find_invoices,
    insert_credit_note,
    insert_invoice,
    read_charges,
    read_charges_by_tenant,
    read_invoiced_months,
)
from gateway.billing.invoices import ComputedLines, CreditNote, Draft, Invoice, Statement, compute_lines, select_months
from gateway.billing.money import dollars
from gateway.billing.month import Month
from gateway.billing.price_store import read_versions
from gateway.billing.prices import PriceVersion
from gateway.billing.tables import InvoiceRow
from gateway.billing.usage import LineKey, UsageSum, UsageTotals
from gateway.tenancy.tables import TenantRow

LOOK_BACK_MONTHS = 12
"""How many months before its own an invoice looks for usage that came late. Usage must be kept for longer."""


class InvoiceStore:
    """Reads final invoices. Every method raises `StoreUnavailable` when the database does not answer."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def get(self, number: str) -> Invoice:
        """
        Raises:
            UnknownInvoice: there is none of that number.
        """
        async with reading(self._database) as connection:
            return await _find(connection, number)

    async def list(self, *, tenant_name: str | None = None, month: Month | None = None) -> tuple[Invoice, ...]:
        """All, or one tenant's, or a month's, by number.

        Raises:
            UnknownTenant: no such tenant.
        """
        async with reading(self._database) as connection:
            conditions = []
            if tenant_name is not None:
                tenant = await find_tenant(connection, tenant_name)
                conditions.append(InvoiceRow.tenant_id == tenant.id)
            if month is not None:
                conditions.append(InvoiceRow.month == str(month))
            return await find_invoices(connection, *conditions)


def invoiced_reader(database: AsyncEngine) -> Callable[[str], Awaitable[Mapping[str, int]]]:
    """For reconciliation: a month, as `2026-11`, to what final invoices charge each tenant for its usage."""

    async def invoiced(month: str) -> Mapping[str, int]:
        async with reading(database) as connection:
            return await read_charges_by_tenant(connection, Month.parse(month))

    return invoiced


class Invoicing:
    """Drafts invoices, and reads what `make_invoice` needs. Every method raises `StoreUnavailable` when the database
    does not answer, and `AnalyticsAway` when the usage cannot be read.

    `grace_s` is how long after the end of a month its late events are waited for.
    """

    def __init__(
        self,
        database: AsyncEngine,
        usage: UsageTotals,
        *,
        grace_s: int,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._usage = usage
        self._grace = timedelta(seconds=grace_s)
        self._now = now

    async def draft(self, tenant_name: str, month: Month) -> Draft:
        """What the invoice of a month would be now, with what does not add up.

        Raises:
            UnknownTenant: no such tenant.
            MonthIsFinal: its invoice is there.
        """
        async with reading(self._database) as connection:
            tenant = await find_tenant(connection, tenant_name)
            final = await _invoice_of(connection, tenant, month)
            if final is not None:
                raise MonthIsFinal(f"{month} is final for {tenant_name}: {final.number}")
            invoiced = await _invoiced(connection, tenant, month)
        # Usage after what was invoiced of it, and before the prices that it is at: then none of them can lack anything.
        used = await self._used(tenant, month)
        async with reading(self._database) as connection:
            return _draft(tenant, month, used, invoiced, await read_versions(connection))

    async def prepare(self, tenant_name: str, month: Month) -> "Invoice | ReadyMonth":
        """What `make_invoice` needs, read before the books are locked; or the final invoice, which is there already.

        Raises:
            UnknownTenant: no such tenant.
            MonthIsOpen: the month and its grace are not over.
        """
        async with reading(self._database) as connection:
            tenant = await find_tenant(connection, tenant_name)
            final = await _invoice_of(connection, tenant, month)
        if final is not None:
            return final
        due = month.end + self._grace
        if self._now() < due:
            raise MonthIsOpen(f"{month} can be invoiced from {due:%Y-%m-%d %H:%M:%S} UTC on")
        return ReadyMonth(tenant, month, await self._used(tenant, month))

    async def compute_uninvoiced(self, tenant_name: str, month: Month) -> ComputedLines:
        """Of a month's usage, what no final invoice has charged, and what does not add up. Nothing at all, once the
        month is final and nothing came late.

        Raises:
            UnknownTenant: no such tenant.
        """
        async with reading(self._database) as connection:
            tenant = await find_tenant(connection, tenant_name)
            invoiced = await read_charges(connection, tenant.id, month, month)
        used = await self._usage.totals(tenant.id, month.start, month.end)
        async with reading(self._database) as connection:
            return compute_lines(used, invoiced, await read_versions(connection))

    async def tenant_names(self) -> tuple[str, ...]:
        """Of all tenants, in order."""
        async with reading(self._database) as connection:
            return tuple((await connection.scalars(select(TenantRow.name).order_by(TenantRow.name))).all())

    async def _used(self, tenant: TenantName, month: Month) -> Mapping[LineKey, UsageSum]:
        return await self._usage.totals(tenant.id, month.plus(-LOOK_BACK_MONTHS).start, month.end)


@dataclass(frozen=True, slots=True)
class ReadyMonth:
    """A month that is over, and what a tenant used until then."""

    tenant: TenantName
    month: Month
    used: Mapping[LineKey, UsageSum]


async def make_invoice(connection: AsyncConnection, ready: ReadyMonth, now: datetime) -> Invoice | None:
    """The final invoice, unless somebody has made it meanwhile: then that one. None: nothing was used. The caller has
    locked the books.

    Raises:
        BooksDiffer: some line does not add up. Nothing is written.
    """
    final = await _invoice_of(connection, ready.tenant, ready.month)
    if final is not None:
        return final
    invoiced = await _invoiced(connection, ready.tenant, ready.month)
    draft = _draft(ready.tenant, ready.month, ready.used, invoiced, await read_versions(connection))
    draft.check()
    if not draft.statement.lines:
        return None
    return await insert_invoice(connection, draft.statement, now)


async def credit_invoice(
    connection: AsyncConnection, number: str, amount_nanodollars: int, reason: str, line: int | None, now: datetime
) -> CreditNote:
    """Take back an amount of an invoice, or of one of its lines, counted from 1. The caller has locked the books.

    Raises:
        UnknownInvoice: there is none of that number, or it has no such line.
        InvalidAmount: nothing, or less.
        InvalidReason: not 1 to 500 printable characters.
        CreditTooLarge: more than is left of the invoice, or of the line.
    """
    check_text("a reason", reason)
    if amount_nanodollars <= 0:
        raise InvalidAmount("a credit note is for more than 0 dollars")
    invoice = await _find(connection, number)
    left = _left(invoice, line)
    if amount_nanodollars > left:
        what = number if line is None else f"line {line} of {number}"
        raise CreditTooLarge(f"{dollars(left)} dollars are left of {what}")
    return await insert_credit_note(connection, invoice, line, amount_nanodollars, reason, now)


@dataclass(frozen=True, slots=True)
class _Invoiced:
    """What the books have of a tenant up to a month: which months are final, and what was charged for each."""

    months: frozenset[Month]
    sums: Mapping[LineKey, UsageSum]


async def _invoiced(connection: AsyncConnection, tenant: TenantName, month: Month) -> _Invoiced:
    months = await read_invoiced_months(connection, tenant.id)
    return _Invoiced(months, await read_charges(connection, tenant.id, month.plus(-LOOK_BACK_MONTHS), month))


def _draft(
    tenant: TenantName,
    month: Month,
    used: Mapping[LineKey, UsageSum],
    invoiced: _Invoiced,
    versions: Sequence[PriceVersion],
) -> Draft:
    mine, open_months = select_months(used, month, invoiced.months)
    reckoning = compute_lines(mine, invoiced.sums, versions)
    statement = Statement(tenant.id, tenant.name, month, reckoning.lines)
    return Draft(statement, reckoning.discrepancies, open_months)


async def _invoice_of(connection: AsyncConnection, tenant: TenantName, month: Month) -> Invoice | None:
    found = await find_invoices(connection, InvoiceRow.tenant_id == tenant.id, InvoiceRow.month == str(month))
    return found[0] if found else None


async def _find(connection: AsyncConnection, number: str) -> Invoice:
    found = await find_invoices(connection, InvoiceRow.number == number)
    if not found:
        raise UnknownInvoice("there is no invoice of that number")
    return found[0]


def _left(invoice: Invoice, line: int | None) -> int:
    """What can still be taken back of an invoice, or of one of its lines."""
    if line is None:
        return invoice.due_nanodollars
    if not 1 <= line <= len(invoice.statement.lines):
        raise UnknownInvoice(f"{invoice.number} has no line {line}")
    on_line = sum(note.amount_nanodollars for note in invoice.credit_notes if note.line == line)
    return min(invoice.due_nanodollars, invoice.statement.lines[line - 1].amount_nanodollars - on_line)
