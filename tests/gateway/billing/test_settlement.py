"""Terms that a final invoice keeps, and its way from open to paid or void, on SQLite and on PostgreSQL."""

from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.billing.errors import InvalidReason, InvoiceSettled, UnknownInvoice
from gateway.billing.invoices import Draft, Invoice, InvoiceStatus
from gateway.billing.month import Month
from gateway.billing.prices import PriceTerms
from gateway.billing.terms import InvoiceTerms
from gateway.common.party import Party
from gateway.tenancy.database import writing
from gateway.tenancy.policies import BILL_TO
from tests.support.billing import Clock, RecordedUsage, an_event, utc
from tests.support.writers import InvoiceWriter, InvoicingWriter, PriceWriter

NOVEMBER = Month(2026, 11)
ISSUER = Party("Turnpike Inc.", "1 Toll Road\nSpringfield", "XX1")
CUSTOMER = Party("Acme GmbH", "Hauptstraße 1\n10115 Berlin", "DE2")
TERMS = InvoiceTerms(ISSUER, payment_days=14, tax_rate=19_000)


class Billing:
    """A tenant that has used one dollar and a fraction of a cent in November."""

    def __init__(self, database: AsyncEngine, tenant_id: str) -> None:
        self.database, self.tenant_id = database, tenant_id
        self.clock = Clock(utc("2026-12-02T10:00"))
        self.usage = RecordedUsage()
        self.invoices = InvoiceWriter(database, now=self.clock)
        self.invoicing = InvoicingWriter(database, self.usage, grace_s=0, terms=TERMS, now=self.clock)

    async def bill_to(self, party: Party) -> None:
        async with writing(self.database) as connection:
            await BILL_TO.write(connection, self.tenant_id, party)

    async def use(self, tokens: int) -> None:
        version = await PriceWriter(self.database, now=self.clock).add(
            PriceTerms.from_dollars("m", Decimal(1), Decimal(1))
        )
        price = version.price("standard")
        self.usage.record(an_event(self.tenant_id, utc("2026-11-15"), price, (tokens, 0, 0)))

    async def final(self, tokens: int = 1_002_345) -> Invoice:
        await self.use(tokens)
        invoice = await self.invoicing.finalise("acme", NOVEMBER)
        assert invoice is not None
        return invoice


@pytest.fixture
def billing(database: AsyncEngine, acme: str) -> Billing:
    return Billing(database, acme)


async def test_a_draft_has_the_terms_of_the_moment(billing: Billing) -> None:
    await billing.use(1_002_345)
    await billing.bill_to(CUSTOMER)
    draft = await billing.invoicing.draft("acme", NOVEMBER)
    assert isinstance(draft, Draft)
    assert (draft.terms.issuer, draft.terms.bill_to) == (ISSUER, CUSTOMER)
    assert (draft.payable.net_cents, draft.payable.tax_cents, draft.payable.total_cents) == (100, 19, 119)


async def test_a_final_invoice_keeps_its_terms(billing: Billing) -> None:
    await billing.bill_to(CUSTOMER)
    invoice = await billing.final()
    await billing.bill_to(Party("Another"))
    billing.clock.now += timedelta(days=100)
    read = await billing.invoices.get(invoice.number)
    assert read == invoice
    assert (read.terms.issuer, read.terms.bill_to, read.terms.tax_rate) == (ISSUER, CUSTOMER, 19_000)
    assert (read.due_date, read.status) == (date(2026, 12, 16), InvoiceStatus.OPEN)
    assert read.statement.total_nanodollars == 1_002_345_000
    assert (read.amounts.issued.total_cents, read.amounts.due_cents) == (119, 119)


async def test_an_open_invoice_is_paid_once(billing: Billing) -> None:
    number = (await billing.final()).number
    await billing.invoices.credit(number, 100_000_000, "a slow day")
    paid = await billing.invoices.settle(number, InvoiceStatus.PAID, "transfer 7")
    assert (paid.status, paid.amounts.paid_cents, paid.amounts.due_cents) == (InvoiceStatus.PAID, 107, 0)
    billing.clock.now += timedelta(days=1)
    assert await billing.invoices.settle(number, InvoiceStatus.PAID, "again") == paid
    assert await billing.invoices.get(number) == paid
    with pytest.raises(InvoiceSettled, match="is paid"):
        await billing.invoices.settle(number, InvoiceStatus.VOID, "a mistake")
    await billing.invoices.credit(number, 100_000_000, "another slow day")
    assert (await billing.invoices.get(number)).amounts.due_cents == -12


async def test_nothing_of_a_void_invoice_is_owed(billing: Billing) -> None:
    number = (await billing.final()).number
    void = await billing.invoices.settle(number, InvoiceStatus.VOID, "a test tenant")
    assert (void.status, void.amounts.due_cents, void.amounts.issued.total_cents) == (InvoiceStatus.VOID, 0, 119)
    for refused in (
        billing.invoices.settle(number, InvoiceStatus.PAID, ""),
        billing.invoices.credit(number, 1, "why"),
    ):
        with pytest.raises(InvoiceSettled, match="is void"):
            await refused
    assert await billing.invoicing.finalise("acme", NOVEMBER) == void, "its usage is not charged again"


async def test_an_invoice_of_no_cent_is_paid(billing: Billing) -> None:
    invoice = await billing.final(4_999)
    assert (invoice.status, invoice.amounts.issued.total_cents) == (InvoiceStatus.PAID, 0)
    assert await billing.invoices.get(invoice.number) == invoice


async def test_a_credit_note_that_leaves_no_cent_settles_the_invoice(billing: Billing) -> None:
    invoice = await billing.final()
    await billing.invoices.credit(invoice.number, 997_000_000, "an outage")
    assert (await billing.invoices.get(invoice.number)).status is InvoiceStatus.OPEN
    note = await billing.invoices.credit(invoice.number, 1_000_000, "the rest")
    read = await billing.invoices.get(invoice.number)
    assert read.amounts.due_cents == 0
    assert read.settlement is not None
    assert (read.status, read.settlement.amount_cents, read.credit_notes[-1]) == (InvoiceStatus.PAID, 0, note)


async def test_odd_settlements_are_refused(billing: Billing) -> None:
    invoice = await billing.final()
    with pytest.raises(UnknownInvoice):
        await billing.invoices.settle("INV-2026-11-000009", InvoiceStatus.PAID, "")
    for note in ("", "a\nb", "a" * 501):
        with pytest.raises(InvalidReason):
            await billing.invoices.settle(invoice.number, InvoiceStatus.VOID, note)
    with pytest.raises(InvalidReason):
        await billing.invoices.settle(invoice.number, InvoiceStatus.PAID, "a" * 501)
    assert await billing.invoices.get(invoice.number) == replace(invoice, settlement=None)
