"""Invoices: lists, pages to print, files, drafts of open months, finalisation, credit notes, paid, void."""

from typing import Any

import orjson

from gateway.billing.money import decimals_of
from gateway.billing.month import Month
from gateway.http.errors import APIError
from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import reading, shown_again
from gateway.management.console.form_parsing import chosen, naming, nanodollars_of
from gateway.management.console.names import pickers_of, resolved
from gateway.management.console.screens import Answer, Document, Page, PageRequest, Redirect, Screens
from gateway.management.console.tenant_scoped_reads import TenantScopedReads
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import Document as WireDocument

SCREENS = Screens()
_FILTERS = ("tenant_id", "status", "month")


@SCREENS.get("/invoices", "invoices", "Invoices", READERS, section="Money", tenants=True)
async def listing(context: ConsoleContext, page_request: PageRequest) -> Page:
    names = _FILTERS if page_request.tenant is None else _FILTERS[1:]
    filters = page_request.query.given(*names)
    values: dict[str, Any] = {
        "invoices": [],
        "next": None,
        "filters": filters,
        "error": None,
        "pickers": await pickers_of(context, page_request, filters),
        "is_tenant": page_request.tenant is not None,
        "month": _month(context, page_request),
        "today": _today(context),
    }
    try:
        given = await resolved(context, page_request, filters)
        page = await reading(page_request)("listInvoices", query={**given, **page_request.query.given("cursor")})
    except APIError as error:
        if not shown_again(error):
            raise
        return Page("invoices.html", values | {"error": error}, error.status)
    found = {"invoices": page["data"], "next": next_page("/invoices", filters, page["next_cursor"])}
    return Page("invoices.html", values | found)


@SCREENS.get("/tenants/{tenant_id}/invoices", "tenant_invoices", "Invoices of a tenant", READERS)
async def of_tenant(context: ConsoleContext, page_request: PageRequest) -> Page:
    tenant = await page_request.actions.read("readTenant", page_request.path)
    query = {"tenant_id": tenant["id"], **page_request.query.given("cursor")}
    page = await page_request.actions.read("listInvoices", query=query)
    values = {
        "tenant": tenant,
        "invoices": page["data"],
        "next": next_page(f"/tenants/{tenant['id']}/invoices", {}, page["next_cursor"]),
        "month": _month(context, page_request),
        "today": _today(context),
    }
    return Page("tenant_invoices.html", values)


@SCREENS.get("/draft", "own_draft", "Draft invoice", tenants=True)
@SCREENS.get("/tenants/{tenant_id}/draft", "draft", "Draft invoice", READERS)
async def draft(context: ConsoleContext, page_request: PageRequest) -> Page:
    """The month of `?month=`, by default the current one."""
    path = {**page_request.path, "month": _month(context, page_request)}
    return _paper(context, page_request, await reading(page_request)("draftInvoice", path))


@SCREENS.post("draft", "finalise")
async def finalise(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    answer = await page_request.actions.submit("finaliseInvoice", page_request.form, page_request.path)
    if answer["invoice"] is None:
        invoices = f"/tenants/{page_request.path['tenant_id']}/invoices"
        return Redirect(invoices, "No usage in this month: no invoice was created.")
    return Redirect(f"/invoices/{answer['invoice']['number']}", "Invoice finalised.")


@SCREENS.get("/invoices/{invoice_number}", "invoice", "Invoice", READERS, tenants=True)
async def one(context: ConsoleContext, page_request: PageRequest) -> Page:
    return _paper(context, page_request, await _read(page_request))


@SCREENS.get("/invoices/{invoice_number}/file", "invoice_file", "Invoice as a file", READERS, tenants=True)
async def file(context: ConsoleContext, page_request: PageRequest) -> Answer:
    """To keep: `json`, `csv` or `html`."""
    number, wanted = page_request.path["invoice_number"], page_request.query.get("format", "json")
    answer = await _read(page_request, wanted)
    name = f"{number}.{wanted}"
    if isinstance(answer, WireDocument):
        return Document(answer.content, answer.media_type, name)
    return Document(orjson.dumps(answer, option=orjson.OPT_INDENT_2), "application/json", name)


@SCREENS.post("invoice", "credit")
async def credit(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    amount = nanodollars_of("dollars", page_request.form.get("dollars"))
    await page_request.actions.read("readInvoice", page_request.path)  # so that what is not found below is the line
    with naming(nanodollars="dollars"), chosen("invoice_not_found", "line"):
        note = await page_request.actions.submit(
            "creditInvoice", page_request.form, page_request.path, {"nanodollars": amount}
        )
    return page_request.saved(f"Credit note {note['number']} of ${note['amount_dollars']} created.")


@SCREENS.post("invoice", "pay")
async def pay(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    invoice = await page_request.actions.submit("payInvoice", page_request.form, page_request.path)
    return page_request.saved(f"Invoice paid: ${invoice['payable']['paid_dollars']}.")


@SCREENS.post("invoice", "void")
async def void(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    await page_request.actions.submit("voidInvoice", page_request.form, page_request.path)
    return page_request.saved("Invoice void: nothing of it is owed.")


async def _read(page_request: PageRequest, wanted: str = "") -> Any:
    query = {"format": wanted} if wanted else {}
    if page_request.tenant is not None:
        return await TenantScopedReads(page_request.operations, page_request.tenant).invoice(
            page_request.path["invoice_number"], query
        )
    return await page_request.actions.read("readInvoice", page_request.path, query)


def _paper(context: ConsoleContext, page_request: PageRequest, invoice: Any) -> Page:
    final_from = context.admin.invoicing.final_from(Month.parse(invoice["month"]))
    exact = [each["amount_nanodollars"] for each in (*invoice["lines"], *invoice["credit_notes"])]
    values = {
        "invoice": invoice,
        "decimals": decimals_of([*exact, invoice["due_nanodollars"]]),
        "today": _today(context),
        "is_tenant": page_request.tenant is not None,
        "may_credit": page_request.may("creditInvoice"),
        "may_settle": page_request.may("payInvoice"),
        "may_finalise": page_request.may("finaliseInvoice"),
        "final_from": None if context.now() >= final_from else f"{final_from:%Y-%m-%d %H:%M} UTC",
    }
    return Page("invoice.html", values)


def _today(context: ConsoleContext) -> str:
    return context.now().date().isoformat()


def _month(context: ConsoleContext, page_request: PageRequest) -> str:
    return page_request.query.get("month") or str(Month.of(context.now()))
