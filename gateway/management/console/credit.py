"""The credit page: prepayments of a tenant and its balance."""

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import naming, nanodollars_of
from gateway.management.console.screens import Page, PageRequest, Redirect, Screens
from gateway.management.console.tenants import balance_of
from gateway.management.operations.roles import READERS

SCREENS = Screens()


@SCREENS.get("/tenants/{tenant_id}/credit", "credit", "Credit", READERS)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    actions = page_request.actions
    entries = await actions.read("listCredit", page_request.path, page_request.query.given("cursor"))
    path = f"/tenants/{page_request.path['tenant_id']}/credit"
    values = {
        "tenant": await actions.read("readTenant", page_request.path),
        "balance": await balance_of(page_request),
        "entries": entries["data"],
        "next": next_page(path, {}, entries["next_cursor"]),
        "may_grant": page_request.may("grantCredit"),
    }
    return Page("credit.html", values)


@SCREENS.post("credit", "grant")
async def grant(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    amount = nanodollars_of("dollars", page_request.form.get("dollars"))
    with naming(nanodollars="dollars"):
        entry = await page_request.actions.submit(
            "grantCredit", page_request.form, page_request.path, {"nanodollars": amount}
        )
    return page_request.saved(f"Credit entry of ${entry['amount_dollars']} added.")
