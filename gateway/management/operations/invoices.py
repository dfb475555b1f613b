"""Monthly invoices of tenants: drafts, final invoices, credit notes."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from gateway.billing import invoicing, render
from gateway.billing.books import MAX_TEXT_CHARS, lock_books
from gateway.billing.errors import InvalidMonth, UnknownInvoice
from gateway.billing.invoices import Draft, Invoice, InvoiceStatus, payable_amounts
from gateway.billing.invoicing import InvoiceStore as StoredInvoices
from gateway.billing.money import MAX_NANODOLLARS
from gateway.billing.month import Month
from gateway.billing.overdue import credited_nanodollars, is_overdue
from gateway.billing.tables import InvoiceRow, InvoiceSettlementRow
from gateway.billing.terms import percent_text
from gateway.common.party import MAX_ADDRESS_CHARS, MAX_ADDRESS_LINES, MAX_NAME_CHARS, MAX_TAX_ID_CHARS
from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import FINANCE, READERS
from gateway.management.operations.routes import PATH_KINDS, Document, Documents, OperationInput, Routes
from gateway.management.operations.schema import (
    Choice,
    Instant,
    Integer,
    Kind,
    ListOf,
    Member,
    Record,
    Text,
    answer,
    nullable,
    optional,
)
from gateway.management.operations.timestamps import instant
from gateway.management.operations.wire import MODEL_NAME, TENANT_ID, TENANT_NAME, money, money_members
from gateway.tenancy.errors import UnknownTenant
from gateway.tenancy.tables import TenantRow

MONTH = PATH_KINDS["month"]
NUMBER = PATH_KINDS["invoice_number"]
MAX_LINES = 100_000
_COUNT = Integer(0)
_CENTS = Integer(-(2**63), 2**63 - 1)
_DATE = Text(10, 10, format="date")
STATUS = Choice(tuple(InvoiceStatus))
OVERDUE = "overdue"
_STATUS_FILTER = optional(Choice((*InvoiceStatus, OVERDUE)), "`overdue`: open and past the due date, in UTC.")
_BY_NUMBER = Listing("invoices", (InvoiceRow.number,))
_LINE_MEMBERS: dict[str, Member | Kind] = {
    "line": Integer(1),
    "usage_month": MONTH,
    "model": MODEL_NAME,
    "adapter_id": Member(Text(96, 0), "The tenant's adapter of the model; empty: none."),
    "tier": Text(64),
    "price_version": Text(255),
    "events": _COUNT,
    "estimated_events": Member(
        _COUNT, "Of `events`, those whose tokens are an estimate, as the model's server reported none."
    ),
    "input_tokens": _COUNT,
    "cached_tokens": _COUNT,
    "output_tokens": _COUNT,
    "input_dollars_per_million": Text(32),
    "cached_dollars_per_million": Text(32),
    "output_dollars_per_million": Text(32),
}
_NOTE_MEMBERS: dict[str, Member | Kind] = {
    "number": NUMBER,
    "invoice": NUMBER,
    "line": nullable(Integer(1), "Null: the whole invoice."),
    "reason": Text(MAX_TEXT_CHARS),
    "created_at": Instant(),
}
CREDIT_NOTE = answer("CreditNote", _NOTE_MEMBERS | money_members("amount"))
_PARTY_MEMBERS: dict[str, Member | Kind] = {
    "name": Text(MAX_NAME_CHARS, 0),
    "address": Member(Text(MAX_ADDRESS_CHARS, 0, max_lines=MAX_ADDRESS_LINES), "Lines, separated by line feeds."),
    "tax_id": Text(MAX_TAX_ID_CHARS, 0),
}
PARTY = answer("InvoiceParty", _PARTY_MEMBERS)
_PAYABLE_ABOUT = {
    "net": "The exact sum of the lines, rounded half up once.",
    "tax": "The net amount times the tax rate, rounded half up.",
    "total": "Net amount and tax.",
    "credited": "What all credit notes take off the total, tax included.",
    "paid": "What was due when the invoice was marked as paid.",
    "due": "What is left to pay: 0 of a void invoice, below 0 if a credit note came after the payment.",
}
PAYABLE = answer(
    "InvoicePayable",
    {
        "currency": Choice(("usd",)),
        **{f"{name}_cents": Member(_CENTS, about) for name, about in _PAYABLE_ABOUT.items()},
        **{f"{name}_dollars": Text(32, pattern=r"-?[0-9]+\.[0-9]{2}") for name in _PAYABLE_ABOUT},
    },
)
_PAYABLE = Member(PAYABLE, "Amounts in whole cents.")
_INVOICE_MEMBERS: dict[str, Member | Kind] = {
    "number": nullable(NUMBER, "Null: a draft."),
    "status": Choice(("draft", *InvoiceStatus)),
    "finalised_at": nullable(Instant()),
    "due_date": nullable(_DATE, "The last day to pay; null: a draft, or finalised before invoices had it."),
    "settled_at": nullable(Instant(), "When it was marked as paid or void."),
    "settlement_note": nullable(Text(MAX_TEXT_CHARS, 0), "Reference of the payment, or reason of voiding."),
    "tenant": TENANT_NAME,
    "tenant_id": TENANT_ID,
    "month": MONTH,
    "issuer": PARTY,
    "bill_to": PARTY,
    "tax_percent": Text(8),
    "payable": _PAYABLE,
    "lines": ListOf(answer("InvoiceLine", _LINE_MEMBERS | money_members("amount")), MAX_LINES),
    "events": _COUNT,
    "digest": Member(Text(32, 32), "Digest of all events."),
    "credit_notes": ListOf(CREDIT_NOTE, MAX_LINES),
    "discrepancies": Member(ListOf(Text(1000), MAX_LINES), "Discrepancies of a draft."),
    "open_months": Member(ListOf(MONTH, 1000), "Earlier months with usage that have no invoice."),
}
INVOICE = answer("Invoice", _INVOICE_MEMBERS | money_members("total") | money_members("due"))
_SUMMARY_MEMBERS: dict[str, Member | Kind] = {
    "number": NUMBER,
    "tenant": TENANT_NAME,
    "tenant_id": TENANT_ID,
    "month": MONTH,
    "status": STATUS,
    "finalised_at": Instant(),
    "due_date": nullable(_DATE),
    "tax_percent": Text(8),
    "payable": _PAYABLE,
}
SUMMARY = answer("InvoiceSummary", _SUMMARY_MEMBERS | money_members("total") | money_members("due"))
_MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "html": "text/html; charset=utf-8"}
_RENDERED = Documents(INVOICE, tuple(each.partition(";")[0] for each in _MEDIA_TYPES.values()))
_FORMAT = {"format": optional(Choice(("json", "csv", "html")))}


@dataclass(frozen=True, slots=True)
class Finalising:
    month: str


@dataclass(frozen=True, slots=True)
class Payment:
    reference: str | None


@dataclass(frozen=True, slots=True)
class Voiding:
    reason: str


@dataclass(frozen=True, slots=True)
class Credit:
    nanodollars: int
    reason: str
    line: int | None


ROUTES = Routes()
_OF_TENANT = "/tenants/{tenant_id}/invoices"


@ROUTES.get(
    "/invoices",
    READERS,
    page_of("InvoicePage", SUMMARY),
    query={**PAGE_QUERY, "tenant_id": optional(TENANT_ID), "month": optional(MONTH), "status": _STATUS_FILTER},
)
async def list_invoices(context: AdminContext, call: OperationInput) -> Any:
    """List final invoices by number."""
    settlement = InvoiceSettlementRow
    statement = select(
        *InvoiceRow.__table__.columns,
        credited_nanodollars().label("credited"),
        settlement.status,
        settlement.amount_cents,
    ).outerjoin(settlement, settlement.invoice_number == InvoiceRow.number)
    for name in ("tenant_id", "month"):
        if call.query[name] is not None:
            statement = statement.where(getattr(InvoiceRow, name) == call.query[name])
    if (status := call.query["status"]) == OVERDUE:
        statement = statement.where(is_overdue(context.now().date()))
    elif status is not None:
        settled_as = None if status is InvoiceStatus.OPEN else status.value
        statement = statement.where(settlement.status == settled_as)
    async with context.reading() as connection:
        return await _BY_NUMBER.page(connection, statement, call.query, context.cursors, _summary)


@ROUTES.get(
    "/invoices/{invoice_number}",
    READERS,
    _RENDERED,
    query=_FORMAT,
)
async def read_invoice(context: AdminContext, call: OperationInput) -> Any:
    """Read a final invoice with its credit notes, as JSON, CSV or a page to print."""
    return _rendered(await StoredInvoices(context.database).get(call.path["invoice_number"]), call.query["format"])


@ROUTES.get(f"{_OF_TENANT}/{{month}}/draft", READERS, _RENDERED, query=_FORMAT)
async def draft_invoice(context: AdminContext, call: OperationInput) -> Any:
    """Read the draft of a tenant's invoice for a month, as of now, as JSON, CSV or a page to print."""
    name = await _tenant_name(context, call)
    return _rendered(await context.invoicing.draft(name, _month_in_path(call)), call.query["format"])


async def _prepare(context: AdminContext, call: OperationInput) -> Any:
    body: Finalising = call.body
    return await context.invoicing.prepare(await _tenant_name(context, call), Month.parse(body.month))


@ROUTES.write(
    "POST",
    _OF_TENANT,
    FINANCE,
    answer("FinalInvoice", {"invoice": nullable(INVOICE, "Null: the month has no usage.")}),
    body=Record("Finalising", Finalising, {"month": Member(MONTH)}),
    prepare=_prepare,
)
async def finalise_invoice(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Finalise a tenant's invoice for a past month. It is open, or paid if no cent is due. A repetition changes
    nothing."""
    invoice = call.prepared
    if not isinstance(invoice, Invoice):
        await lock_books(change.connection)
        invoice = await invoicing.find_final(change.connection, call.prepared)
    if invoice is None:
        invoice = await invoicing.make_invoice(change.connection, call.prepared, change.at)
        if invoice is not None:
            told = money("total", invoice.statement.total_nanodollars) | {"month": str(invoice.statement.month)}
            told |= {"status": invoice.status.value, "payable_cents": invoice.amounts.issued.total_cents}
            change.record("finalise", "invoice", invoice.number, tenant_id=invoice.statement.tenant_id, after=told)
    return {"invoice": None if invoice is None else render.fields(invoice)}


@ROUTES.write(
    "POST",
    "/invoices/{invoice_number}/credit-notes",
    FINANCE,
    CREDIT_NOTE,
    body=Record(
        "Credit",
        Credit,
        {
            "nanodollars": Member(Integer(1, MAX_NANODOLLARS)),
            "reason": Member(Text(MAX_TEXT_CHARS), "Reason, shown to the tenant."),
            "line": optional(Integer(1, MAX_LINES), "Line to credit. Default: the whole invoice."),
        },
    ),
    status=201,
)
async def credit_invoice(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Create a credit note for part of an invoice, or of one of its lines. An open invoice that has no cent left is
    paid then."""
    body: Credit = call.body
    number = call.path["invoice_number"]
    await lock_books(change.connection)
    before = await invoicing.find_invoice(change.connection, number)
    note = await invoicing.credit_invoice(
        change.connection, number, body.nanodollars, body.reason, body.line, change.at
    )
    after = await invoicing.find_invoice(change.connection, number)
    tenant_id = after.statement.tenant_id
    answer = change.record("credit", "invoice", number, tenant_id=tenant_id, after=render.note_fields(note))
    change.record("pay", "invoice", number, tenant_id=tenant_id, before=_settled(before), after=_settled(after))
    return answer


@ROUTES.write(
    "POST",
    "/invoices/{invoice_number}/pay",
    FINANCE,
    INVOICE,
    body=Record(
        "Payment",
        Payment,
        {"reference": optional(Text(MAX_TEXT_CHARS), "Reference of the payment, shown to the tenant.")},
    ),
)
async def pay_invoice(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Mark an open invoice as paid in full: the amount that is due was received. Repeating the request changes
    nothing."""
    body: Payment = call.body
    return await _settle(change, call, InvoiceStatus.PAID, body.reference or "", "pay")


@ROUTES.write(
    "POST",
    "/invoices/{invoice_number}/void",
    FINANCE,
    INVOICE,
    body=Record("Voiding", Voiding, {"reason": Member(Text(MAX_TEXT_CHARS), "Reason, shown to the tenant.")}),
)
async def void_invoice(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Mark an open invoice as void: nothing of it is owed. Its lines stay, and its usage is not charged again."""
    body: Voiding = call.body
    return await _settle(change, call, InvoiceStatus.VOID, body.reason, "void")


async def _settle(change: Change, call: OperationInput, status: InvoiceStatus, note: str, action: str) -> Any:
    number = call.path["invoice_number"]
    await lock_books(change.connection)
    before = await invoicing.find_invoice(change.connection, number)
    invoice = await invoicing.settle_invoice(change.connection, before, status, note, change.at)
    told = [_settled(each) for each in (before, invoice)]
    tenant_id = invoice.statement.tenant_id
    change.record(action, "invoice", number, tenant_id=tenant_id, before=told[0], after=told[1])
    return render.fields(invoice)


def _settled(invoice: Invoice) -> dict[str, Any]:
    settlement = invoice.settlement
    return {
        "status": invoice.status.value,
        "paid_cents": invoice.amounts.paid_cents,
        "note": None if settlement is None else settlement.note,
    }


async def _tenant_name(context: AdminContext, call: OperationInput) -> str:
    async with context.reading() as connection:
        name = await connection.scalar(select(TenantRow.name).where(TenantRow.id == call.path["tenant_id"]))
    if name is None:
        raise UnknownTenant("there is no such tenant")
    return name


def _rendered(document: Draft | Invoice, format: str | None) -> Any:
    match format:
        case "csv":
            return Document(render.as_csv(document).encode(), _MEDIA_TYPES["csv"])
        case "html":
            return Document(render.as_html(document).encode(), _MEDIA_TYPES["html"])
        case _:
            return render.fields(document)


def _month_in_path(call: OperationInput) -> Month:
    try:
        return Month.parse(call.path["month"])
    except InvalidMonth:
        raise UnknownInvoice("there is no such month") from None


def _summary(row: Any) -> dict[str, Any]:
    credited = int(row.credited)
    status = InvoiceStatus.OPEN if row.status is None else InvoiceStatus(row.status)
    amounts = payable_amounts(
        row.total_nanodollars,
        credited,
        row.tax_rate,
        paid_cents=row.amount_cents or 0,
        void=status is InvoiceStatus.VOID,
    )
    return {
        "number": row.number,
        "tenant": row.tenant_name,
        "tenant_id": row.tenant_id,
        "month": row.month,
        "status": status.value,
        "finalised_at": instant(row.finalised_at),
        "due_date": None if row.due_date is None else row.due_date.isoformat(),
        "tax_percent": percent_text(row.tax_rate),
        "payable": render.payable_fields(amounts),
        **money("total", row.total_nanodollars),
        **money("due", row.total_nanodollars - credited),
    }
