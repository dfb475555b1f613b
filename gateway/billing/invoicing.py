"""Makes drafts, final invoices and credit notes from usage and the books."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.billing.books import TenantName, check_text, find_tenant, reading
from gateway.billing.errors import (
    CreditTooLarge,
    InvalidAmount,
    InvoiceSettled,
    MonthIsFinal,
    MonthIsOpen,
    UnknownInvoice,
)
from gateway.billing.invoice_rows import (
    find_invoices,
    insert_credit_note,
    insert_invoice,
    insert_settlement,
    read_charges,
    read_charges_by_tenant,
    read_invoiced_months,
)
from gateway.billing.invoices import (
    ComputedLines,
    CreditNote,
    Draft,
    Invoice,
    InvoiceStatus,
    Settlement,
    Statement,
    compute_lines,
    select_months,
)
from gateway.billing.money import dollars
from gateway.billing.month import Month
from gateway.billing.price_store import read_versions
from gateway.billing.prices import PriceVersion
from gateway.billing.tables import InvoiceRow
from gateway.billing.terms import NO_TERMS, InvoiceTerms
from gateway.billing.usage import LineKey, UsageSum, UsageTotals
from gateway.tenancy.policies import BILL_TO
from gateway.tenancy.tables import TenantRow

LOOK_BACK_MONTHS = 12
"""Months before its own in which an invoice looks for late usage. Usage must be kept for longer."""


class InvoiceStore:
    """Reads final invoices. Every method raises `StoreUnavailable` if the database does not answer."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def get(self, number: str) -> Invoice:
        """The invoice with this number.

        Raises:
            UnknownInvoice: there is no such invoice.
        """
        async with reading(self._database) as connection:
            return await find_invoice(connection, number)

    async def list(self, *, tenant_name: str | None = None, month: Month | None = None) -> tuple[Invoice, ...]:
        """Invoices by number: all, or those of a tenant, or of a month.

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
    """Function for reconciliation: from a month, as `2026-11`, to the nanodollars that final invoices charge each
    tenant for its usage."""

    async def read(month: str) -> Mapping[str, int]:
        async with reading(database) as connection:
            return await read_charges_by_tenant(connection, Month.parse(month))

    return read


class Invoicing:
    """Drafts invoices, and reads the input of `make_invoice`. Every method raises `StoreUnavailable` if the database
    does not answer, and `AnalyticsAway` if the usage cannot be read.

    `grace_s`: seconds after the end of a month in which its late events are awaited. `terms`: of invoices from now on,
    without a bill-to, which is the tenant's own.
    """

    def __init__(
        self,
        database: AsyncEngine,
        usage: UsageTotals,
        *,
        grace_s: int,
        terms: InvoiceTerms = NO_TERMS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._database = database
        self._usage = usage
        self._grace = timedelta(seconds=grace_s)
        self._terms = terms
        self._now = now

    async def draft(self, tenant_name: str, month: Month) -> Draft:
        """The invoice of a month as it would be now, with its discrepancies.

        Raises:
            UnknownTenant: no such tenant.
            MonthIsFinal: the month has a final invoice.
        """
        async with reading(self._database) as connection:
            tenant = await find_tenant(connection, tenant_name)
            final = await _invoice_of(connection, tenant, month)
            if final is not None:
                raise MonthIsFinal(f"{month} is final for {tenant_name}: {final.number}")
            invoiced = await _read_invoiced(connection, tenant, month)
        # Usage is read after the charges and before the prices, so neither can be incomplete.
        used = await self._read_usage(tenant, month)
        async with reading(self._database) as connection:
            terms = await _terms_for(connection, tenant, self._terms)
            return _draft(tenant, month, used, invoiced, await read_versions(connection), terms)

    def final_from(self, month: Month) -> datetime:
        """When the month and its grace period are over: from then on its invoice can be made final."""
        return month.end + self._grace

    async def prepare(self, tenant_name: str, month: Month) -> "Invoice | ReadyMonth":
        """The input of `make_invoice`, read before the books are locked; or the final invoice if there is one.

        Raises:
            UnknownTenant: no such tenant.
            MonthIsOpen: the month and its grace period are not over.
        """
        async with reading(self._database) as connection:
            tenant = await find_tenant(connection, tenant_name)
            final = await _invoice_of(connection, tenant, month)
        if final is not None:
            return final
        due = self.final_from(month)
        if self._now() < due:
            raise MonthIsOpen(f"{month} can be invoiced from {due:%Y-%m-%d %H:%M:%S} UTC on")
        return ReadyMonth(tenant, month, await self._read_usage(tenant, month), self._terms)

    async def compute_uninvoiced(self, tenant_name: str, month: Month) -> ComputedLines:
        """The usage of a month that no final invoice has charged, and discrepancies. Empty once the month is final and
        no usage came late.

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
        """The names of all tenants, sorted."""
        async with reading(self._database) as connection:
            return tuple((await connection.scalars(select(TenantRow.name).order_by(TenantRow.name))).all())

    async def _read_usage(self, tenant: TenantName, month: Month) -> Mapping[LineKey, UsageSum]:
        return await self._usage.totals(tenant.id, month.plus(-LOOK_BACK_MONTHS).start, month.end)


@dataclass(frozen=True, slots=True)
class ReadyMonth:
    """A month that is over, with the tenant's usage until its end. `terms`: without a bill-to."""

    tenant: TenantName
    month: Month
    used: Mapping[LineKey, UsageSum]
    terms: InvoiceTerms


async def find_final(connection: AsyncConnection, ready: ReadyMonth) -> Invoice | None:
    """The final invoice of the month, if another caller has made it since."""
    return await _invoice_of(connection, ready.tenant, ready.month)


async def make_invoice(connection: AsyncConnection, ready: ReadyMonth, now: datetime) -> Invoice | None:
    """Make the final invoice. None: there was no usage. The caller has locked the books, and `find_final` has found
    none.

    Raises:
        BooksDiffer: a line does not add up. Nothing is written.
    """
    invoiced = await _read_invoiced(connection, ready.tenant, ready.month)
    terms = await _terms_for(connection, ready.tenant, ready.terms)
    draft = _draft(ready.tenant, ready.month, ready.used, invoiced, await read_versions(connection), terms)
    draft.check()
    if not draft.statement.lines:
        return None
    return await _settle_if_nothing_is_due(
        connection, await insert_invoice(connection, draft.statement, terms, now), now
    )


async def credit_invoice(
    connection: AsyncConnection, number: str, amount_nanodollars: int, reason: str, line: int | None, now: datetime
) -> CreditNote:
    """Take back an amount from an invoice or from one of its lines. `line`: number from 1; None: the invoice. The
    caller has locked the books.

    Raises:
        UnknownInvoice: there is no such invoice or line.
        InvalidAmount: the amount is not above 0.
        InvalidReason: not 1 to 500 printable characters.
        CreditTooLarge: the amount is more than is left of the invoice or of the line.
        InvoiceSettled: the invoice is void.
    """
    check_text("a reason", reason)
    if amount_nanodollars <= 0:
        raise InvalidAmount("a credit note is for more than 0 dollars")
    invoice = await find_invoice(connection, number)
    if invoice.status is InvoiceStatus.VOID:
        raise InvoiceSettled(f"{number} is void: nothing of it is owed")
    left = _remaining(invoice, line)
    if amount_nanodollars > left:
        what = number if line is None else f"line {line} of {number}"
        raise CreditTooLarge(f"{dollars(left)} dollars are left of {what}")
    note = await insert_credit_note(connection, invoice, line, amount_nanodollars, reason, now)
    await _settle_if_nothing_is_due(connection, replace(invoice, credit_notes=(*invoice.credit_notes, note)), now)
    return note


async def settle_invoice(
    connection: AsyncConnection, invoice: Invoice, status: InvoiceStatus, note: str, now: datetime
) -> Invoice:
    """Mark an open invoice as paid, in full, or as void. `note`: reference of the payment, maybe empty, or the reason.
    The caller has locked the books, and then read the invoice. Repeating it changes nothing.

    Raises:
        InvalidReason: not 1 to 500 printable characters; a reference may be empty.
        InvoiceSettled: the invoice has the other status.
    """
    if note or status is InvoiceStatus.VOID:
        check_text("a reason" if status is InvoiceStatus.VOID else "a reference", note)
    if invoice.status is status:
        return invoice
    if invoice.settlement is not None:
        raise InvoiceSettled(f"{invoice.number} is {invoice.status}: only an open invoice becomes {status}")
    amount = invoice.amounts.due_cents if status is InvoiceStatus.PAID else 0
    return await _settle(connection, invoice, Settlement(status, amount, note, now))


async def _settle(connection: AsyncConnection, invoice: Invoice, settlement: Settlement) -> Invoice:
    await insert_settlement(connection, invoice.number, settlement)
    return replace(invoice, settlement=settlement)


async def _settle_if_nothing_is_due(connection: AsyncConnection, invoice: Invoice, now: datetime) -> Invoice:
    """An open invoice of which no cent is due is paid."""
    if invoice.status is not InvoiceStatus.OPEN or invoice.amounts.due_cents > 0:
        return invoice
    return await _settle(connection, invoice, Settlement(InvoiceStatus.PAID, 0, "nothing is due", now))


@dataclass(frozen=True, slots=True)
class _Invoiced:
    """A tenant's books up to a month: the final months, and the sums charged."""

    months: frozenset[Month]
    sums: Mapping[LineKey, UsageSum]


async def _read_invoiced(connection: AsyncConnection, tenant: TenantName, month: Month) -> _Invoiced:
    months = await read_invoiced_months(connection, tenant.id)
    return _Invoiced(months, await read_charges(connection, tenant.id, month.plus(-LOOK_BACK_MONTHS), month))


def _draft(
    tenant: TenantName,
    month: Month,
    used: Mapping[LineKey, UsageSum],
    invoiced: _Invoiced,
    versions: Sequence[PriceVersion],
    terms: InvoiceTerms,
) -> Draft:
    mine, open_months = select_months(used, month, invoiced.months)
    reckoning = compute_lines(mine, invoiced.sums, versions)
    statement = Statement(tenant.id, tenant.name, month, reckoning.lines)
    return Draft(statement, reckoning.discrepancies, open_months, terms)


async def _terms_for(connection: AsyncConnection, tenant: TenantName, terms: InvoiceTerms) -> InvoiceTerms:
    return terms.billed_to(await BILL_TO.read(connection, tenant.id))


async def _invoice_of(connection: AsyncConnection, tenant: TenantName, month: Month) -> Invoice | None:
    found = await find_invoices(connection, InvoiceRow.tenant_id == tenant.id, InvoiceRow.month == str(month))
    return found[0] if found else None


async def find_invoice(connection: AsyncConnection, number: str) -> Invoice:
    """
    Raises:
        UnknownInvoice: there is no invoice of that number.
    """
    found = await find_invoices(connection, InvoiceRow.number == number)
    if not found:
        raise UnknownInvoice("there is no invoice of that number")
    return found[0]


def _remaining(invoice: Invoice, line: int | None) -> int:
    """The amount that can still be taken back from an invoice or from one of its lines."""
    if line is None:
        return invoice.due_nanodollars
    if not 1 <= line <= len(invoice.statement.lines):
        raise UnknownInvoice(f"{invoice.number} has no line {line}")
    on_line = sum(note.amount_nanodollars for note in invoice.credit_notes if note.line == line)
    return min(invoice.due_nanodollars, invoice.statement.lines[line - 1].amount_nanodollars - on_line)
