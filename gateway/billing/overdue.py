"""Overdue invoices: open, and past their due date."""

from dataclasses import dataclass
from datetime import date

from sqlalchemy import ColumnElement, ScalarSelect, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.billing.invoices import payable_amounts
from gateway.billing.tables import CreditNoteRow, InvoiceRow, InvoiceSettlementRow


@dataclass(frozen=True, slots=True)
class Overdue:
    """A number of invoices, and what is due of them together, taxes and credit notes included."""

    invoices: int
    due_cents: int


def is_overdue(today: date) -> ColumnElement[bool]:
    """Condition on `InvoiceRow` with an outer join of its `InvoiceSettlementRow`. `today` is in UTC. An invoice without
    a due date is not overdue."""
    return and_(InvoiceSettlementRow.status.is_(None), InvoiceRow.due_date < today)


def credited_nanodollars() -> ScalarSelect[int]:
    """The sum of the credit notes of an `InvoiceRow`, without tax."""
    return (
        select(func.coalesce(func.sum(CreditNoteRow.amount_nanodollars), 0))
        .where(CreditNoteRow.invoice_number == InvoiceRow.number)
        .scalar_subquery()
    )


async def read_overdue(connection: AsyncConnection, today: date) -> Overdue:
    """The overdue invoices of all tenants. Each amount due is rounded to cents before it is added, as it is on its
    invoice."""
    statement = (
        select(InvoiceRow.total_nanodollars, InvoiceRow.tax_rate, credited_nanodollars().label("credited"))
        .outerjoin(InvoiceSettlementRow, InvoiceSettlementRow.invoice_number == InvoiceRow.number)
        .where(is_overdue(today))
    )
    due_cents = [
        payable_amounts(row.total_nanodollars, int(row.credited), row.tax_rate).due_cents
        for row in await connection.execute(statement)
    ]
    return Overdue(len(due_cents), sum(due_cents))
