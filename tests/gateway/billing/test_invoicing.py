"""Drafts, final invoices and credit notes, on SQLite and on PostgreSQL."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.billing.errors import (
    BooksDiffer,
    CreditTooLarge,
    InvalidAmount,
    InvalidReason,
    MonthIsFinal,
    MonthIsOpen,
    UnknownInvoice,
)
from gateway.billing.invoices import Invoice
from gateway.billing.invoicing import invoiced_reader
from gateway.billing.month import Month
from gateway.billing.prices import Price, PriceTerms
from gateway.tenancy import UnknownTenant
from tests.support.billing import Clock, RecordedUsage, an_event, utc
from tests.support.writers import InvoiceWriter, InvoicingWriter, PriceWriter, TenantWriter

OCTOBER, NOVEMBER, DECEMBER = Month(2026, 10), Month(2026, 11), Month(2026, 12)
GRACE_S = 3600
IN_OCTOBER = utc("2026-10-15")
IN_NOVEMBER = utc("2026-11-15")


class World:
    """One tenant that uses one model, and everything that bills it."""

    def __init__(self, database: AsyncEngine, tenant_id: str) -> None:
        self.database = database
        self.tenant_id = tenant_id
        self.clock = Clock(utc("2026-12-02"))
        self.usage = RecordedUsage()
        self.prices = PriceWriter(database, now=self.clock)
        self.invoicing = InvoicingWriter(database, self.usage, grace_s=GRACE_S, now=self.clock)
        self.invoices = InvoiceWriter(database, now=self.clock)
        self.price = Price("", 0, 0, 0)

    async def set_price(self, dollars: int) -> None:
        version = await self.prices.add(PriceTerms.from_dollars("m", Decimal(dollars), Decimal(4)))
        self.price = version.price("standard")

    async def final(self, month: Month) -> Invoice:
        invoice = await self.invoicing.finalise("acme", month)
        assert invoice is not None
        return invoice


@pytest.fixture
async def world(database: AsyncEngine, acme: str) -> World:
    world = World(database, acme)
    await world.set_price(1)
    return world


async def test_a_draft_is_what_was_used_so_far(world: World) -> None:
    world.usage.record(an_event(world.tenant_id, IN_NOVEMBER, world.price, (10, 0, 5)))
    first = await world.invoicing.draft("acme", NOVEMBER)
    assert first.statement.total_nanodollars == 10 * 1000 + 5 * 4000
    world.usage.record(an_event(world.tenant_id, IN_NOVEMBER, world.price, (1, 0, 0)))
    second = await world.invoicing.draft("acme", NOVEMBER)
    assert second.statement.total_nanodollars == first.statement.total_nanodollars + 1000
    assert second.statement.events == 2
    assert await world.invoices.list() == ()


async def test_a_month_ends_on_its_last_millisecond(world: World) -> None:
    for instant in (NOVEMBER.start, NOVEMBER.end - timedelta(milliseconds=1)):
        world.usage.record(an_event(world.tenant_id, instant, world.price, (1, 0, 0)))
    for instant in (NOVEMBER.start - timedelta(milliseconds=1), NOVEMBER.end):
        world.usage.record(an_event(world.tenant_id, instant, world.price, (100, 0, 0)))
    draft = await world.invoicing.draft("acme", NOVEMBER)
    assert draft.statement.total_nanodollars == 2000
    assert draft.open_months == (OCTOBER,)


async def test_lines_are_by_month_model_class_and_price(world: World) -> None:
    first = world.price
    world.usage.record(an_event(world.tenant_id, IN_NOVEMBER, first, (10, 4, 5)))
    world.clock.now += timedelta(days=1)
    await world.set_price(2)
    world.usage.record(
        an_event(world.tenant_id, IN_NOVEMBER, world.price, (10, 4, 5)),
        an_event(world.tenant_id, IN_NOVEMBER, world.price, (10, 4, 5)),
    )
    draft = await world.invoicing.draft("acme", NOVEMBER)
    one, two = draft.statement.lines
    assert (one.price, one.usage.events) == (first, 1)
    assert (two.price, two.usage.events) == (world.price, 2)
    assert (two.usage.input_tokens, two.usage.cached_tokens, two.usage.output_tokens) == (12, 8, 10)


async def test_a_final_invoice_stays_what_it_is(world: World) -> None:
    event = an_event(world.tenant_id, IN_NOVEMBER, world.price, (10, 3, 5))
    world.usage.record(event)
    invoice = await world.final(NOVEMBER)
    assert invoice.number == "INV-2026-11-000001"
    assert invoice.statement.total_nanodollars == event.cost_nanodollars
    # Delivered again, at other prices, later: nothing of it moves.
    world.usage.record(event)
    world.clock.now += timedelta(days=40)
    await world.set_price(9)
    assert await world.final(NOVEMBER) == invoice
    assert await world.invoices.get(invoice.number) == invoice
    assert await world.invoices.list(tenant_name="acme", month=NOVEMBER) == (invoice,)
    rest = await world.invoicing.compute_uninvoiced("acme", NOVEMBER)
    assert (rest.lines, rest.discrepancies) == ((), ())
    with pytest.raises(MonthIsFinal, match=invoice.number):
        await world.invoicing.draft("acme", NOVEMBER)


async def test_a_month_is_closed_after_its_grace(world: World) -> None:
    world.usage.record(an_event(world.tenant_id, IN_NOVEMBER, world.price, (1, 0, 0)))
    world.clock.now = NOVEMBER.end + timedelta(seconds=GRACE_S) - timedelta(milliseconds=1)
    with pytest.raises(MonthIsOpen, match="2026-12-01 01:00:00 UTC"):
        await world.invoicing.finalise("acme", NOVEMBER)
    world.clock.now += timedelta(milliseconds=1)
    assert (await world.final(NOVEMBER)).finalised_at == world.clock.now


async def test_nothing_used_is_nothing_owed(world: World) -> None:
    assert await world.invoicing.finalise("acme", NOVEMBER) is None
    assert await world.invoices.list() == ()
    with pytest.raises(UnknownTenant):
        await world.invoicing.finalise("nobody", NOVEMBER)


async def test_many_who_close_a_month_together_make_one_invoice(world: World) -> None:
    world.usage.record(an_event(world.tenant_id, IN_NOVEMBER, world.price, (1, 0, 0)))
    made = await asyncio.gather(*(world.final(NOVEMBER) for _ in range(6)))
    assert len({invoice.number for invoice in made}) == 1
    assert len(await world.invoices.list()) == 1


async def test_numbers_have_no_gaps(world: World) -> None:
    tenants = [
        await TenantWriter(world.database, b"p" * 32).create_tenant(f"t{index}", "standard") for index in range(5)
    ]
    wrong = an_event(tenants[2].id, IN_NOVEMBER, world.price, (1, 0, 0), cost_nanodollars=7)
    world.usage.record(wrong, *(an_event(each.id, IN_NOVEMBER, world.price, (1, 0, 0)) for each in tenants[:4]))
    await asyncio.gather(*(world.invoicing.finalise(each.name, NOVEMBER) for each in tenants), return_exceptions=True)
    world.usage.events.pop(wrong.event_id)
    await world.invoicing.finalise("t2", NOVEMBER)
    numbers = [invoice.number for invoice in await world.invoices.list(month=NOVEMBER)]
    assert numbers == [f"INV-2026-11-{number:06d}" for number in (1, 2, 3, 4)]


async def test_what_comes_late_is_on_the_next_invoice(world: World) -> None:
    world.usage.record(an_event(world.tenant_id, IN_OCTOBER, world.price, (10, 0, 0)))
    october = await world.final(OCTOBER)
    late = an_event(world.tenant_id, IN_OCTOBER, world.price, (3, 0, 1))
    world.usage.record(late, an_event(world.tenant_id, IN_NOVEMBER, world.price, (5, 0, 0)))
    (line,) = (await world.invoicing.compute_uninvoiced("acme", OCTOBER)).lines
    assert line.usage.events == 1

    november = await world.final(NOVEMBER)
    adjustment, own = november.statement.lines
    assert adjustment.key.usage_month == OCTOBER
    assert adjustment.amount_nanodollars == late.cost_nanodollars
    assert own.key.usage_month == NOVEMBER
    assert (await world.invoicing.compute_uninvoiced("acme", OCTOBER)).lines == ()
    assert await world.invoices.get(october.number) == october

    later = an_event(world.tenant_id, IN_OCTOBER, world.price, (7, 0, 0))
    world.usage.record(later)
    world.clock.now = utc("2027-01-02")
    (line,) = (await world.final(DECEMBER)).statement.lines
    assert (line.key.usage_month, line.amount_nanodollars) == (OCTOBER, later.cost_nanodollars)
    total = sum(invoice.statement.total_nanodollars for invoice in await world.invoices.list())
    assert total == await world.usage.spent_nanodollars(world.tenant_id, utc("2000-01-01"))


async def test_lines_count_the_requests_whose_tokens_are_estimated(world: World) -> None:
    """Once: late ones are on the adjustment alone."""

    def use(*tokens: int, estimated: bool) -> None:
        for each in tokens:
            world.usage.record(an_event(world.tenant_id, IN_OCTOBER, world.price, (each, 0, 0), estimated=estimated))

    use(5, estimated=False)
    use(10, estimated=True)
    october = await world.final(OCTOBER)
    use(5, estimated=False)
    use(10, 11, estimated=True)
    november = await world.final(NOVEMBER)
    for invoice, events, estimates in ((october, 2, 1), (november, 3, 2)):
        (line,) = (await world.invoices.get(invoice.number)).statement.lines
        assert (line.usage.events, line.usage.estimated_events) == (events, estimates)


async def test_what_was_invoiced_of_a_month_is_told_for_reconciliation(world: World) -> None:
    invoiced = invoiced_reader(world.database)
    event = an_event(world.tenant_id, IN_OCTOBER, world.price, (10, 0, 0))
    world.usage.record(event)
    assert await invoiced("2026-10") == {}
    await world.final(OCTOBER)
    assert await invoiced("2026-10") == {world.tenant_id: event.cost_nanodollars}
    late = an_event(world.tenant_id, IN_OCTOBER, world.price, (3, 0, 1))
    own = an_event(world.tenant_id, IN_NOVEMBER, world.price, (5, 0, 0))
    world.usage.record(late, own)
    assert await invoiced("2026-10") == {world.tenant_id: event.cost_nanodollars}
    await world.final(NOVEMBER)
    assert await invoiced("2026-10") == {world.tenant_id: event.cost_nanodollars + late.cost_nanodollars}
    assert await invoiced("2026-11") == {world.tenant_id: own.cost_nanodollars}


async def test_books_that_differ_are_not_closed(world: World) -> None:
    right = an_event(world.tenant_id, IN_NOVEMBER, world.price, (1, 0, 0))
    world.usage.record(replace(right, cost_nanodollars=right.cost_nanodollars + 1))
    with pytest.raises(BooksDiffer, match="2026-11, m, standard"):
        await world.invoicing.finalise("acme", NOVEMBER)
    assert await world.invoices.list() == ()
    draft = await world.invoicing.draft("acme", NOVEMBER)
    assert draft.statement.lines == ()
    assert len(draft.discrepancies) == 1


async def test_an_invoiced_event_that_is_gone_or_changed_is_noticed(world: World) -> None:
    event = an_event(world.tenant_id, IN_OCTOBER, world.price, (1, 0, 0))
    world.usage.record(event, an_event(world.tenant_id, IN_NOVEMBER, world.price, (1, 0, 0)))
    await world.final(OCTOBER)
    world.usage.events.pop(event.event_id)
    with pytest.raises(BooksDiffer, match=r"2026-10.*less usage"):
        await world.invoicing.finalise("acme", NOVEMBER)
    world.usage.record(an_event(world.tenant_id, IN_OCTOBER, world.price, (1, 0, 0)))
    with pytest.raises(BooksDiffer, match=r"2026-10.*changed"):
        await world.invoicing.finalise("acme", NOVEMBER)
    assert len((await world.invoicing.compute_uninvoiced("acme", OCTOBER)).discrepancies) == 1


async def test_credit_notes_take_back_no_more_than_was_charged(world: World) -> None:
    world.usage.record(
        an_event(world.tenant_id, IN_NOVEMBER, world.price, (10, 0, 0)),
        an_event(world.tenant_id, IN_NOVEMBER, world.price, (5, 0, 0), tier_served="bulk"),
    )
    invoice = await world.final(NOVEMBER)
    assert [line.amount_nanodollars for line in invoice.statement.lines] == [5000, 10_000]
    first = await world.invoices.credit(invoice.number, 4000, "a slow day", line=1)
    assert first.number == "CN-2026-12-000001"
    with pytest.raises(CreditTooLarge, match=r"0\.000001 .*line 1"):
        await world.invoices.credit(invoice.number, 1001, "more", line=1)
    second = await world.invoices.credit(invoice.number, 9000, "a bad week")
    # What was taken back of the whole binds its lines, too.
    with pytest.raises(CreditTooLarge, match=r"0\.000002 "):
        await world.invoices.credit(invoice.number, 2001, "more", line=2)
    with pytest.raises(CreditTooLarge, match=r"0\.000002 "):
        await world.invoices.credit(invoice.number, 2001, "more")
    with_notes = await world.invoices.get(invoice.number)
    assert with_notes == replace(invoice, credit_notes=(first, second))
    assert (with_notes.credited_nanodollars, with_notes.due_nanodollars) == (13_000, 2000)


async def test_credit_notes_given_at_once_stay_within_the_invoice(world: World) -> None:
    world.usage.record(an_event(world.tenant_id, IN_NOVEMBER, world.price, (10, 0, 0)))
    invoice = await world.final(NOVEMBER)
    given = await asyncio.gather(
        *(world.invoices.credit(invoice.number, 4000, "once") for _ in range(5)), return_exceptions=True
    )
    assert sum(isinstance(each, CreditTooLarge) for each in given) == 3
    assert (await world.invoices.get(invoice.number)).due_nanodollars == 2000


async def test_odd_credit_notes_are_refused(world: World) -> None:
    world.usage.record(an_event(world.tenant_id, IN_NOVEMBER, world.price, (10, 0, 0)))
    number = (await world.final(NOVEMBER)).number
    with pytest.raises(UnknownInvoice):
        await world.invoices.credit("INV-2026-11-000002", 1, "why")
    for line in (0, 2):
        with pytest.raises(UnknownInvoice, match=f"no line {line}"):
            await world.invoices.credit(number, 1, "why", line=line)
    for amount in (0, -1):
        with pytest.raises(InvalidAmount):
            await world.invoices.credit(number, amount, "why")
    for reason in ("", "a\nb", "a" * 501):
        with pytest.raises(InvalidReason):
            await world.invoices.credit(number, 1, reason)
