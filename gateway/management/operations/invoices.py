"""Monthly invoices of tenants: drafts, final invoices, credit notes."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from gateway.billing import invoicing, render
from gateway.billing.books import MAX_TEXT_CHARS, lock_books
from gateway.billing.errors import InvalidMonth, UnknownInvoice
from gateway.billing.invoices import Draft, Invoice
from gateway.billing.invoicing import InvoiceStore as StoredInvoices
from gateway.billing.money import MAX_NANODOLLARS
from gateway.billing.month import Month
from gateway.billing.tables import CreditNoteRow, InvoiceRow
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
_BY_NUMBER = Listing("invoices", (InvoiceRow.number,))
_LINE_MEMBERS: dict[str, Member | Kind] = {
    "line": Integer(1),
    "usage_month": MONTH,
    "model": MODEL_NAME,
    "tier": Text(64),
    "price_version": Text(255),
    "events": _COUNT,
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
_INVOICE_MEMBERS: dict[str, Member | Kind] = {
    "number": nullable(NUMBER, "Null: a draft."),
    "finalised_at": nullable(Instant()),
    "tenant": TENANT_NAME,
    "tenant_id": TENANT_ID,
    "month": MONTH,
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
    "finalised_at": Instant(),
}
SUMMARY = answer("InvoiceSummary", _SUMMARY_MEMBERS | money_members("total") | money_members("due"))
_MEDIA_TYPES = {"csv": "text/csv; charset=utf-8", "html": "text/html; charset=utf-8"}
_RENDERED = Documents(INVOICE, tuple(each.partition(";")[0] for each in _MEDIA_TYPES.values()))
_FORMAT = {"format": optional(Choice(("json", "csv", "html")))}


@dataclass(frozen=True, slots=True)
class Finalising:
    month: str


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
    query={**PAGE_QUERY, "tenant_id": optional(TENANT_ID), "month": optional(MONTH)},
)
async def list_invoices(context: AdminContext, call: OperationInput) -> Any:
    """List final invoices by number."""
    credited = (
        select(func.coalesce(func.sum(CreditNoteRow.amount_nanodollars), 0))
        .where(CreditNoteRow.invoice_number == InvoiceRow.number)
        .scalar_subquery()
    )
    statement = select(*InvoiceRow.__table__.columns, credited.label("credited"))
    for name in ("tenant_id", "month"):
        if call.query[name] is not None:
            statement = statement.where(getattr(InvoiceRow, name) == call.query[name])
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
    """Finalise a tenant's invoice for a past month. Repeating the request changes nothing."""
    invoice = call.prepared
    if not isinstance(invoice, Invoice):
        await lock_books(change.connection)
        invoice = await invoicing.find_final(change.connection, call.prepared)
    if invoice is None:
        invoice = await invoicing.make_invoice(change.connection, call.prepared, change.at)
        if invoice is not None:
            told = money("total", invoice.statement.total_nanodollars) | {"month": str(invoice.statement.month)}
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
    """Create a credit note for part of an invoice, or of one of its lines."""
    body: Credit = call.body
    number = call.path["invoice_number"]
    await lock_books(change.connection)
    note = await invoicing.credit_invoice(
        change.connection, number, body.nanodollars, body.reason, body.line, change.at
    )
    tenant_id = await change.connection.scalar(select(InvoiceRow.tenant_id).where(InvoiceRow.number == number))
    return change.record("credit", "invoice", number, tenant_id=tenant_id, after=render.note_fields(note))


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
    return {
        "number": row.number,
        "tenant": row.tenant_name,
        "tenant_id": row.tenant_id,
        "month": row.month,
        "finalised_at": instant(row.finalised_at),
        **money("total", row.total_nanodollars),
        **money("due", row.total_nanodollars - int(row.credited)),
    }
