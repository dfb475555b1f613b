"""Tenants: found, created, moved between classes, suspended; how their sessions and requests are handled."""

from typing import Any

from gateway.http.errors import APIError
from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.policies import declare_forms, policy_forms
from gateway.management.console.refusals import reasons_of_tenant
from gateway.management.console.screens import Page, PageRequest, Redirect, Screens
from gateway.management.operations.roles import READERS

SCREENS = Screens()
declare_forms(SCREENS, "tenant")


@SCREENS.get("/tenants", "tenants", "Tenants", READERS, section="Manage")
async def listing(context: ConsoleContext, page_request: PageRequest) -> Page:
    filters = page_request.query.given("search", "tier", "suspended")
    page = await page_request.actions.read("listTenants", query={**filters, **page_request.query.given("cursor")})
    values = {
        "tenants": page["data"],
        "next": next_page("/tenants", filters, page["next_cursor"]),
        "filters": filters,
        "tiers": [(tier, tier) for tier in context.admin.tiers],
        "default_tier": context.classes.default_tier,
        "may_create": page_request.may("createTenant"),
    }
    return Page("tenants.html", values)


@SCREENS.post("tenants", "create")
async def create(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    tenant = await page_request.actions.submit("createTenant", page_request.form)
    return Redirect(f"/tenants/{tenant['id']}", "Tenant created.")


@SCREENS.get("/tenants/{tenant_id}", "tenant", "Tenant", READERS)
async def one(context: ConsoleContext, page_request: PageRequest) -> Page:
    actions = page_request.actions
    tenant = await actions.read("readTenant", page_request.path)
    values = {
        "tenant": tenant,
        "balance": await balance_of(page_request),
        "reasons": await reasons_of_tenant(page_request, tenant["id"]),
        "policies": await policy_forms(page_request),
        "tiers": [(tier, tier) for tier in context.admin.tiers],
        "may_change": page_request.may("updateTenant"),
    }
    return Page("tenant.html", values)


@SCREENS.post("tenant", "move")
async def move(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    await page_request.actions.submit("updateTenant", page_request.form, page_request.path)
    return page_request.saved("Tenant class updated.")


@SCREENS.post("tenant", "suspend")
async def suspend(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    await page_request.actions.change("suspendTenant", page_request.path)
    return page_request.saved("Tenant suspended.")


@SCREENS.post("tenant", "resume")
async def resume(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    await page_request.actions.change("resumeTenant", page_request.path)
    return page_request.saved("Tenant resumed.")


async def balance_of(page_request: PageRequest) -> Any:
    """A tenant's balance; None while the store of usage is away, which need not take the rest of a page along."""
    try:
        return await page_request.actions.read("readBalance", page_request.path)
    except APIError as error:
        if error.status != 503:
            raise
        return None
