"""Conversion of invoices and credit notes between values and rows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import Row, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.billing.invoices import (
    CreditNote,
    Invoice,
    InvoiceLine,
    InvoiceStatus,
    Settlement,
    Statement,
    add_up,
)
from gateway.billing.month import Month
from gateway.billing.prices import Price, joined_version, split_version
from gateway.billing.tables import CreditNoteRow, InvoiceLineRow, InvoiceRow, InvoiceSettlementRow
from gateway.billing.terms import InvoiceTerms
from gateway.billing.usage import LineKey, UsageSum
from gateway.common.party import NO_PARTY, Party


async def insert_invoice(
    connection: AsyncConnection, statement: Statement, terms: InvoiceTerms, now: datetime
) -> Invoice:
    """Insert an invoice with the next number of its month. The caller has locked the books (`lock_books`)."""
    due_date = terms.due_date(now)
    sequence = await _next_sequence(connection, InvoiceRow, statement.month)
    number = f"INV-{statement.month}-{sequence:06d}"
    row = {
        "number": number,
        "tenant_id": statement.tenant_id,
        "tenant_name": statement.tenant_name,
        "month": str(statement.month),
        "sequence": sequence,
        "total_nanodollars": statement.total_nanodollars,
        "events": statement.events,
        "digest": statement.digest,
        "finalised_at": now,
        "issuer": asdict(terms.issuer),
        "bill_to": asdict(terms.bill_to),
        "due_date": due_date,
        "tax_rate": terms.tax_rate,
    }
    await connection.execute(insert(InvoiceRow).values(row))
    lines = [_line_row(number, index, line) for index, line in enumerate(statement.lines, 1)]
    await connection.execute(insert(InvoiceLineRow), lines)
    return Invoice(number, statement, now, terms=replace(terms, payment_days=None), due_date=due_date)


async def insert_settlement(connection: AsyncConnection, number: str, settlement: Settlement) -> None:
    """Insert the settlement of an invoice that has none. The caller has locked the books (`lock_books`)."""
    row = {
        "invoice_number": number,
        "status": settlement.status.value,
        "amount_cents": settlement.amount_cents,
        "note": settlement.note,
        "created_at": settlement.at,
    }
    await connection.execute(insert(InvoiceSettlementRow).values(row))


async def insert_credit_note(
    connection: AsyncConnection, invoice: Invoice, line: int | None, amount: int, reason: str, now: datetime
) -> CreditNote:
    """Insert a credit note with the next number of the month it is made in. The caller has locked the books
    (`lock_books`)."""
    month = Month.of(now)
    sequence = await _next_sequence(connection, CreditNoteRow, month)
    note = CreditNote(f"CN-{month}-{sequence:06d}", invoice.number, line, amount, reason, now)
    row = {
        "number": note.number,
        "invoice_number": invoice.number,
        "line": line,
        "month": str(month),
        "sequence": sequence,
        "amount_nanodollars": amount,
        "reason": reason,
        "created_at": now,
    }
    await connection.execute(insert(CreditNoteRow).values(row))
    return note


async def find_invoices(connection: AsyncConnection, *conditions: Any) -> tuple[Invoice, ...]:
    """Complete invoices whose `InvoiceRow` meets all conditions, by number."""
    chosen = select(InvoiceRow.number).where(*conditions)
    rows = (await connection.execute(_INVOICES.where(*conditions).order_by(InvoiceRow.number))).all()
    in_chosen = InvoiceLineRow.invoice_number.in_(chosen)
    lines: dict[str, list[InvoiceLine]] = defaultdict(list)
    for row in (await connection.execute(_LINES.where(in_chosen).order_by(InvoiceLineRow.line))).all():
        lines[row.invoice_number].append(_line(row))
    notes: dict[str, list[CreditNote]] = defaultdict(list)
    of_chosen = CreditNoteRow.invoice_number.in_(chosen)
    for row in (await connection.execute(_NOTES.where(of_chosen).order_by(CreditNoteRow.number))).all():
        notes[row.invoice_number].append(CreditNote(*row))
    settled = InvoiceSettlementRow.invoice_number.in_(chosen)
    settlements = {
        row.invoice_number: Settlement(InvoiceStatus(row.status), row.amount_cents, row.note, row.created_at)
        for row in (await connection.execute(_SETTLEMENTS.where(settled))).all()
    }
    return tuple(_invoice(row, lines[row.number], notes[row.number], settlements.get(row.number)) for row in rows)


async def read_invoiced_months(connection: AsyncConnection, tenant_id: str) -> frozenset[Month]:
    """The months for which a tenant has a final invoice."""
    query = select(InvoiceRow.month).where(InvoiceRow.tenant_id == tenant_id)
    return frozenset(map(Month.parse, (await connection.scalars(query)).all()))


async def read_charges(
    connection: AsyncConnection, tenant_id: str, since: Month, until: Month
) -> Mapping[LineKey, UsageSum]:
    """The sums that final invoices have charged a tenant for usage from `since` to `until`, both included."""
    query = _LINES.join(InvoiceRow, InvoiceRow.number == InvoiceLineRow.invoice_number).where(
        InvoiceRow.tenant_id == tenant_id,
        InvoiceLineRow.usage_month >= str(since),
        InvoiceLineRow.usage_month <= str(until),
    )
    lines = map(_line, (await connection.execute(query)).all())
    return add_up((line.key, line.usage) for line in lines)


async def read_charges_by_tenant(connection: AsyncConnection, month: Month) -> Mapping[str, int]:
    """For each tenant with a final invoice of the month: the nanodollars of all invoice lines for that month's usage,
    later invoices included."""
    final = select(InvoiceRow.tenant_id).where(InvoiceRow.month == str(month))
    lines = (
        select(InvoiceRow.tenant_id, func.sum(InvoiceLineRow.amount_nanodollars))
        .join(InvoiceLineRow, InvoiceLineRow.invoice_number == InvoiceRow.number)
        .where(InvoiceLineRow.usage_month == str(month))
        .group_by(InvoiceRow.tenant_id)
    )
    # PostgreSQL sums integers to a decimal number, exactly.
    amounts = {tenant_id: int(amount) for tenant_id, amount in (await connection.execute(lines)).all()}
    return {tenant_id: amounts.get(tenant_id, 0) for tenant_id in (await connection.scalars(final)).all()}


async def _next_sequence(
    connection: AsyncConnection, table: type[InvoiceRow] | type[CreditNoteRow], month: Month
) -> int:
    last = await connection.scalar(select(func.max(table.sequence)).where(table.month == str(month)))
    return (last or 0) + 1


def _line_row(number: str, index: int, line: InvoiceLine) -> dict[str, Any]:
    version, multiplier = split_version(line.key.price_version)
    return {
        "invoice_number": number,
        "line": index,
        "usage_month": str(line.key.usage_month),
        "served_model": line.key.served_model,
        "tier_served": line.key.tier_served,
        "price_version": version,
        "price_multiplier": f"{multiplier:f}",
        "adapter_id": line.key.adapter_id,
        "input_tokens": line.usage.input_tokens,
        "cached_tokens": line.usage.cached_tokens,
        "output_tokens": line.usage.output_tokens,
        "input_price": line.price.prompt,
        "cached_price": line.price.cached_prompt,
        "output_price": line.price.completion,
        "events": line.usage.events,
        "amount_nanodollars": line.amount_nanodollars,
        "digest": f"{line.usage.digest:032x}",
        "estimated_events": line.usage.estimated_events,
    }


def _line(row: Row[*tuple[Any, ...]]) -> InvoiceLine:
    version = joined_version(row.price_version, Decimal(row.price_multiplier))
    return InvoiceLine(
        LineKey(Month.parse(row.usage_month), row.served_model, row.tier_served, version, row.adapter_id),
        UsageSum(
            row.events,
            row.input_tokens,
            row.cached_tokens,
            row.output_tokens,
            row.amount_nanodollars,
            int(row.digest, 16),
            row.estimated_events,
        ),
        Price(version, row.input_price, row.cached_price, row.output_price),
    )


def _invoice(
    row: Row[*tuple[Any, ...]],
    lines: Sequence[InvoiceLine],
    notes: Sequence[CreditNote],
    settlement: Settlement | None,
) -> Invoice:
    statement = Statement(row.tenant_id, row.tenant_name, Month.parse(row.month), tuple(lines))
    stored = (row.total_nanodollars, row.events, row.digest)
    assert stored == (statement.total_nanodollars, statement.events, statement.digest), f"{row.number} is not its lines"
    terms = InvoiceTerms(_party(row.issuer), _party(row.bill_to), tax_rate=row.tax_rate)
    return Invoice(row.number, statement, row.finalised_at, tuple(notes), terms, row.due_date, settlement)


def _party(fields: Mapping[str, str] | None) -> Party:
    return NO_PARTY if fields is None else Party(**fields)


_INVOICES = select(*InvoiceRow.__table__.columns)
_LINES = select(*InvoiceLineRow.__table__.columns)
_NOTES = select(
    CreditNoteRow.number,
    CreditNoteRow.invoice_number,
    CreditNoteRow.line,
    CreditNoteRow.amount_nanodollars,
    CreditNoteRow.reason,
    CreditNoteRow.created_at,
)
_SETTLEMENTS = select(
    InvoiceSettlementRow.invoice_number,
    InvoiceSettlementRow.status,
    InvoiceSettlementRow.amount_cents,
    InvoiceSettlementRow.note,
    InvoiceSettlementRow.created_at,
)
