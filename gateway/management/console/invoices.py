"""Invoices: listed, read, printed, kept as files; drafts of months that run; finalised; credited in part."""

from typing import Any

import orjson

from gateway.billing.month import Month
from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.own import OwnRecords
from gateway.management.console.screens import Answer, Document, Page, Redirect, Screen, Visit
from gateway.management.console.typed import chosen, naming, nanodollars_of
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import Document as WireDocument


class Invoices:
    """Handlers. A tenant's key reads what `OwnRecords` binds to its tenant, and changes nothing."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    async def listing(self, visit: Visit) -> Page:
        if visit.tenant is None:
            filters = visit.query.given("tenant_id", "month")
            page = await visit.acts.read("listInvoices", query={**filters, **visit.query.given("cursor")})
        else:
            filters = visit.query.given("month")
            mine = OwnRecords(visit.operations, visit.tenant)
            page = await mine.read("listInvoices", query={**filters, **visit.query.given("cursor")})
        values = {
            "invoices": page["data"],
            "next": next_page("/invoices", filters, page["next_cursor"]),
            "filters": filters,
            "is_tenant": visit.tenant is not None,
            "month": self._month(visit),
        }
        return Page("invoices.html", values)

    async def of_tenant(self, visit: Visit) -> Page:
        tenant = await visit.acts.read("readTenant", visit.path)
        query = {"tenant_id": tenant["id"], **visit.query.given("cursor")}
        page = await visit.acts.read("listInvoices", query=query)
        values = {
            "tenant": tenant,
            "invoices": page["data"],
            "next": next_page(f"/tenants/{tenant['id']}/invoices", {}, page["next_cursor"]),
            "month": self._month(visit),
        }
        return Page("tenant_invoices.html", values)

    async def draft(self, visit: Visit) -> Page:
        """Of `?month=`, by default the one that runs."""
        path = {**visit.path, "month": self._month(visit)}
        return self._paper(visit, await visit.acts.read("draftInvoice", path))

    async def own_draft(self, visit: Visit) -> Page:
        assert visit.tenant is not None
        mine = OwnRecords(visit.operations, visit.tenant)
        return self._paper(visit, await mine.read("draftInvoice", {"month": self._month(visit)}))

    async def finalise(self, visit: Visit) -> Redirect:
        answer = await visit.acts.submit("finaliseInvoice", visit.form, visit.path)
        if answer["invoice"] is None:
            return Redirect(f"/tenants/{visit.path['tenant_id']}/invoices", "Nothing was used: there is no invoice.")
        return Redirect(f"/invoices/{answer['invoice']['number']}", "The invoice is final.")

    async def one(self, visit: Visit) -> Page:
        return self._paper(visit, await self._read(visit))

    async def file(self, visit: Visit) -> Answer:
        """To keep: `json`, `csv` or `html`."""
        number, wanted = visit.path["invoice_number"], visit.query.get("format", "json")
        answer = await self._read(visit, wanted)
        name = f"{number}.{wanted}"
        if isinstance(answer, WireDocument):
            return Document(answer.content, answer.media_type, name)
        return Document(orjson.dumps(answer, option=orjson.OPT_INDENT_2), "application/json", name)

    async def credit(self, visit: Visit) -> Redirect:
        amount = nanodollars_of("dollars", visit.form.get("dollars"))
        await visit.acts.read("readInvoice", visit.path)  # so that what is not found below is the line
        with naming(nanodollars="dollars"), chosen("invoice_not_found", "line"):
            note = await visit.acts.submit("creditInvoice", visit.form, visit.path, {"nanodollars": amount})
        return Redirect(f"/invoices/{note['invoice']}", f"Credited ${note['amount_dollars']} with {note['number']}.")

    async def _read(self, visit: Visit, wanted: str = "") -> Any:
        query = {"format": wanted} if wanted else {}
        if visit.tenant is not None:
            return await OwnRecords(visit.operations, visit.tenant).invoice(visit.path["invoice_number"], query)
        return await visit.acts.read("readInvoice", visit.path, query)

    def _paper(self, visit: Visit, invoice: Any) -> Page:
        values = {
            "invoice": invoice,
            "is_tenant": visit.tenant is not None,
            "may_credit": visit.may("creditInvoice"),
            "may_finalise": visit.may("finaliseInvoice"),
        }
        return Page("invoice.html", values)

    def _month(self, visit: Visit) -> str:
        return visit.query.get("month") or str(Month.of(self._context.now()))


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
