"""Users of the console and the admin API: administrators' keys and their roles. A key itself is in the one answer to
the form that created it."""

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import Page, PageRequest, Redirect, Screens
from gateway.management.operations.roles import READERS

ROLES = (
    ("viewer", "viewer: reads everything"),
    ("billing", "billing: changes prices, invoices and credit; reads all but the audit log"),
    ("admin", "admin: everything"),
)

SCREENS = Screens()


@SCREENS.get("/users", "users", "Users", READERS, section="Operate")
async def listing(context: ConsoleContext, page_request: PageRequest) -> Page:
    filters = page_request.query.given("revoked")
    query = {"revoked": "false", **filters, **page_request.query.given("cursor")}
    page = await page_request.actions.read("listAdminKeys", query=query)
    values = {
        "keys": page["data"],
        "next": next_page("/users", filters, page["next_cursor"]),
        "filters": filters,
        "roles": ROLES,
        "own_id": page_request.user.key_id,
        "may_change": page_request.may("createAdminKey"),
        "may_audit": page_request.may("listAudit"),
    }
    return Page("users.html", values)


@SCREENS.post("users", "create")
async def create(context: ConsoleContext, page_request: PageRequest) -> Page:
    key = await page_request.actions.submit("createAdminKey", page_request.form)
    return Page("user_shown.html", {"key": key}, 201)


@SCREENS.post("users", "revoke")
async def revoke(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    await page_request.actions.change("revokeAdminKey", {"key_id": page_request.form.get("form")})
    return page_request.saved("Key revoked. Running gateways reject it within 5 seconds.")
