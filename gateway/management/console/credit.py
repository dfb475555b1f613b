"""The credit page: prepayments of a tenant and its balance."""

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import naming, nanodollars_of
from gateway.management.console.screens import Page, PageRequest, Redirect, Screen
from gateway.management.console.tenants import balance_of
from gateway.management.operations.roles import READERS


async def page(page_request: PageRequest) -> Page:
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


async def grant(page_request: PageRequest) -> Redirect:
    amount = nanodollars_of("dollars", page_request.form.get("dollars"))
    with naming(nanodollars="dollars"):
        entry = await page_request.actions.submit(
            "grantCredit", page_request.form, page_request.path, {"nanodollars": amount}
        )
    return Redirect(f"/tenants/{page_request.path['tenant_id']}/credit", f"Entered ${entry['amount_dollars']}.")


def screens(context: ConsoleContext) -> list[Screen]:
    return [
        Screen(
            path="/tenants/{tenant_id}/credit",
            name="credit",
            title="Credit",
            allowed=READERS,
            get=page,
            post={"grant": grant},
        )
    ]
