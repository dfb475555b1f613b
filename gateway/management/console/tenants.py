"""Tenants: found, created, moved between classes, suspended; how their sessions and requests are handled."""

from typing import Any

from gateway.http.errors import APIError
from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.policies import policy_forms, policy_posts
from gateway.management.console.screens import Page, PageRequest, Redirect, Screen
from gateway.management.operations.roles import READERS


class Tenants:
    """Handlers."""

    def __init__(self, context: ConsoleContext) -> None:
        self._tiers = [(tier, tier) for tier in context.admin.tiers]
        self._default_tier = context.classes.default_tier

    async def listing(self, page_request: PageRequest) -> Page:
        filters = page_request.query.given("search", "tier", "suspended")
        page = await page_request.actions.read("listTenants", query={**filters, **page_request.query.given("cursor")})
        values = {
            "tenants": page["data"],
            "next": next_page("/tenants", filters, page["next_cursor"]),
            "filters": filters,
            "tiers": self._tiers,
            "default_tier": self._default_tier,
            "may_create": page_request.may("createTenant"),
        }
        return Page("tenants.html", values)

    async def create(self, page_request: PageRequest) -> Redirect:
        tenant = await page_request.actions.submit("createTenant", page_request.form)
        return Redirect(f"/tenants/{tenant['id']}", f"Created {tenant['name']}.")

    async def one(self, page_request: PageRequest) -> Page:
        actions = page_request.actions
        tenant = await actions.read("readTenant", page_request.path)
        values = {
            "tenant": tenant,
            "balance": await balance_of(page_request),
            "policies": await policy_forms(page_request),
            "tiers": self._tiers,
            "may_change": page_request.may("updateTenant"),
        }
        return Page("tenant.html", values)

    async def move(self, page_request: PageRequest) -> Redirect:
        tenant = await page_request.actions.submit("updateTenant", page_request.form, page_request.path)
        return _back(page_request, f"{tenant['name']} is in the class {tenant['tier']}.")

    async def suspend(self, page_request: PageRequest) -> Redirect:
        tenant = await page_request.actions.change("suspendTenant", page_request.path)
        return _back(page_request, f"{tenant['name']} is suspended: its keys are refused.")

    async def resume(self, page_request: PageRequest) -> Redirect:
        tenant = await page_request.actions.change("resumeTenant", page_request.path)
        return _back(page_request, f"{tenant['name']} is served again.")


async def balance_of(page_request: PageRequest) -> Any:
    """A tenant's balance; None while the store of usage is away, which need not take the rest of a page along."""
    try:
        return await page_request.actions.read("readBalance", page_request.path)
    except APIError as error:
        if error.status != 503:
            raise
        return None


def _back(page_request: PageRequest, said: str) -> Redirect:
    return Redirect(f"/tenants/{page_request.path['tenant_id']}", said)


def screens(context: ConsoleContext) -> list[Screen]:
    tenants = Tenants(context)
    return [
        Screen(
            path="/tenants",
            name="tenants",
            title="Tenants",
            section="Manage",
            allowed=READERS,
            get=tenants.listing,
            post={"create": tenants.create},
        ),
        Screen(
            path="/tenants/{tenant_id}",
            name="tenant",
            title="Tenant",
            allowed=READERS,
            get=tenants.one,
            post={
                "move": tenants.move,
                "suspend": tenants.suspend,
                "resume": tenants.resume,
                **policy_posts(),
            },
        ),
    ]
