"""The database itself refuses to change what is in the books."""

from decimal import Decimal

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.billing.month import Month
from gateway.billing.prices import PriceTerms
from tests.support.billing import Clock, RecordedUsage, an_event, utc
from tests.support.writers import CreditWriter, InvoiceWriter, InvoicingWriter, PriceWriter

CLOCK = Clock(utc("2026-12-02"))


@pytest.fixture
async def books(database: AsyncEngine, acme: str) -> AsyncEngine:
    """With a row in each table."""
    version = await PriceWriter(database, now=CLOCK).add(PriceTerms.from_dollars("m", Decimal(1), Decimal(1)))
    usage = RecordedUsage()
    usage.record(an_event(acme, utc("2026-11-15"), version.price("standard"), (1, 0, 1)))
    invoice = await InvoicingWriter(database, usage, grace_s=0, now=CLOCK).finalise("acme", Month(2026, 11))
    await InvoiceWriter(database, now=CLOCK).credit(invoice.number, 1, "why")
    await CreditWriter(database).add("acme", 1, "why", "k")
    return database


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("price_versions", "input"),
        ("price_multipliers", "multiplier"),
        ("invoices", "total_nanodollars"),
        ("invoice_lines", "amount_nanodollars"),
        ("credit_notes", "amount_nanodollars"),
        ("invoice_settlements", "amount_cents"),
        ("credit_entries", "amount_nanodollars"),
    ],
)
async def test_rows_are_neither_changed_nor_deleted(books: AsyncEngine, table: str, column: str) -> None:
    query = text(f"SELECT * FROM {table}")
    async with books.connect() as connection:
        before = (await connection.execute(query)).all()
    assert before
    for change in (f"UPDATE {table} SET {column} = {column}", f"DELETE FROM {table}"):
        with pytest.raises(DBAPIError, match="only added to"):
            async with books.begin() as connection:
                await connection.execute(text(change))
    async with books.connect() as connection:
        assert (await connection.execute(query)).all() == before
