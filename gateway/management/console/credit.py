"""What a tenant has paid in advance, and what is left of it."""

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import Page, Redirect, Screen, Visit
from gateway.management.console.tenants import balance_of
from gateway.management.console.typed import naming, nanodollars_of
from gateway.management.operations.roles import READERS


async def page(visit: Visit) -> Page:
    acts = visit.acts
    entries = await acts.read("listCredit", visit.path, visit.query.given("cursor"))
    path = f"/tenants/{visit.path['tenant_id']}/credit"
    values = {
        "tenant": await acts.read("readTenant", visit.path),
        "balance": await balance_of(visit),
        "entries": entries["data"],
        "next": next_page(path, {}, entries["next_cursor"]),
        "may_grant": visit.may("grantCredit"),
    }
    return Page("credit.html", values)


async def grant(visit: Visit) -> Redirect:
    amount = nanodollars_of("dollars", visit.form.get("dollars"))
    with naming(nanodollars="dollars"):
        entry = await visit.acts.submit("grantCredit", visit.form, visit.path, {"nanodollars": amount})
    return Redirect(f"/tenants/{visit.path['tenant_id']}/credit", f"Entered ${entry['amount_dollars']}.")


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
