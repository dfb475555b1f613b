"""Invoices: lists, pages to print, files, drafts of open months, finalisation, credit notes."""

from typing import Any

import orjson

from gateway.billing.month import Month
from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import chosen, naming, nanodollars_of
from gateway.management.console.screens import Answer, Document, Page, PageRequest, Redirect, Screen
from gateway.management.console.tenant_scoped_reads import TenantScopedReads
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import Document as WireDocument


class Invoices:
    """Handlers. A tenant's key reads what `TenantScopedReads` binds to its tenant, and changes nothing."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    async def listing(self, page_request: PageRequest) -> Page:
        if page_request.tenant is None:
            filters = page_request.query.given("tenant_id", "month")
            page = await page_request.actions.read(
                "listInvoices", query={**filters, **page_request.query.given("cursor")}
            )
        else:
            filters = page_request.query.given("month")
            mine = TenantScopedReads(page_request.operations, page_request.tenant)
            page = await mine.read("listInvoices", query={**filters, **page_request.query.given("cursor")})
        values = {
            "invoices": page["data"],
            "next": next_page("/invoices", filters, page["next_cursor"]),
            "filters": filters,
            "is_tenant": page_request.tenant is not None,
            "month": self._month(page_request),
        }
        return Page("invoices.html", values)

    async def of_tenant(self, page_request: PageRequest) -> Page:
        tenant = await page_request.actions.read("readTenant", page_request.path)
        query = {"tenant_id": tenant["id"], **page_request.query.given("cursor")}
        page = await page_request.actions.read("listInvoices", query=query)
        values = {
            "tenant": tenant,
            "invoices": page["data"],
            "next": next_page(f"/tenants/{tenant['id']}/invoices", {}, page["next_cursor"]),
            "month": self._month(page_request),
        }
        return Page("tenant_invoices.html", values)

    async def draft(self, page_request: PageRequest) -> Page:
        """The month of `?month=`, by default the current one."""
        path = {**page_request.path, "month": self._month(page_request)}
        return self._paper(page_request, await page_request.actions.read("draftInvoice", path))

    async def own_draft(self, page_request: PageRequest) -> Page:
        assert page_request.tenant is not None
        mine = TenantScopedReads(page_request.operations, page_request.tenant)
        return self._paper(page_request, await mine.read("draftInvoice", {"month": self._month(page_request)}))

    async def finalise(self, page_request: PageRequest) -> Redirect:
        answer = await page_request.actions.submit("finaliseInvoice", page_request.form, page_request.path)
        if answer["invoice"] is None:
            invoices = f"/tenants/{page_request.path['tenant_id']}/invoices"
            return Redirect(invoices, "Nothing was used: there is no invoice.")
        return Redirect(f"/invoices/{answer['invoice']['number']}", "The invoice is final.")

    async def one(self, page_request: PageRequest) -> Page:
        return self._paper(page_request, await self._read(page_request))

    async def file(self, page_request: PageRequest) -> Answer:
        """To keep: `json`, `csv` or `html`."""
        number, wanted = page_request.path["invoice_number"], page_request.query.get("format", "json")
        answer = await self._read(page_request, wanted)
        name = f"{number}.{wanted}"
        if isinstance(answer, WireDocument):
            return Document(answer.content, answer.media_type, name)
        return Document(orjson.dumps(answer, option=orjson.OPT_INDENT_2), "application/json", name)

    async def credit(self, page_request: PageRequest) -> Redirect:
        amount = nanodollars_of("dollars", page_request.form.get("dollars"))
        await page_request.actions.read("readInvoice", page_request.path)  # so that what is not found below is the line
        with naming(nanodollars="dollars"), chosen("invoice_not_found", "line"):
            note = await page_request.actions.submit(
                "creditInvoice", page_request.form, page_request.path, {"nanodollars": amount}
            )
        return Redirect(f"/invoices/{note['invoice']}", f"Credited ${note['amount_dollars']} with {note['number']}.")

    async def _read(self, page_request: PageRequest, wanted: str = "") -> Any:
        query = {"format": wanted} if wanted else {}
        if page_request.tenant is not None:
            return await TenantScopedReads(page_request.operations, page_request.tenant).invoice(
                page_request.path["invoice_number"], query
            )
        return await page_request.actions.read("readInvoice", page_request.path, query)

    def _paper(self, page_request: PageRequest, invoice: Any) -> Page:
        values = {
            "invoice": invoice,
            "is_tenant": page_request.tenant is not None,
            "may_credit": page_request.may("creditInvoice"),
            "may_finalise": page_request.may("finaliseInvoice"),
        }
        return Page("invoice.html", values)

    def _month(self, page_request: PageRequest) -> str:
        return page_request.query.get("month") or str(Month.of(self._context.now()))


def screens(context: ConsoleContext) -> list[Screen]:
    invoices = Invoices(context)
    of_tenant = "/tenants/{tenant_id}"
    return [
        Screen(
            path="/invoices",
            name="invoices",
            title="Invoices",
            section="Money",
            allowed=READERS,
            tenants=True,
            get=invoices.listing,
        ),
        Screen(
            path="/invoices/{invoice_number}",
            name="invoice",
            title="Invoice",
            allowed=READERS,
            tenants=True,
            get=invoices.one,
            post={"credit": invoices.credit},
        ),
        Screen(
            path="/invoices/{invoice_number}/file",
            name="invoice_file",
            title="Invoice as a file",
            allowed=READERS,
            tenants=True,
            get=invoices.file,
        ),
        Screen(path="/draft", name="own_draft", title="Draft invoice", tenants=True, get=invoices.own_draft),
        Screen(
            path=f"{of_tenant}/invoices",
            name="tenant_invoices",
            title="Invoices of a tenant",
            allowed=READERS,
            get=invoices.of_tenant,
        ),
        Screen(
            path=f"{of_tenant}/draft",
            name="draft",
            title="Draft invoice",
            allowed=READERS,
            get=invoices.draft,
            post={"finalise": invoices.finalise},
        ),
    ]
