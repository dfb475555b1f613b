"""Tenants: found, created, moved between classes, suspended; how their sessions and requests are handled."""

from typing import Any

from gateway.http.errors import APIError
from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import Page, Redirect, Screen, Visit
from gateway.management.console.typed import pairs_of
from gateway.management.operations.roles import READERS
from gateway.sessions.policy import SessionWindow
from gateway.tenancy.routing_policy import Preference

_ALIASES = "assistant = large-model"


class Tenants:
    """Handlers."""

    def __init__(self, context: ConsoleContext) -> None:
        self._tiers = [(tier, tier) for tier in context.admin.tiers]
        self._default_tier = context.classes.default_tier

    async def listing(self, visit: Visit) -> Page:
        filters = visit.query.given("search", "tier", "suspended")
        page = await visit.acts.read("listTenants", query={**filters, **visit.query.given("cursor")})
        values = {
            "tenants": page["data"],
            "next": next_page("/tenants", filters, page["next_cursor"]),
            "filters": filters,
            "tiers": self._tiers,
            "default_tier": self._default_tier,
            "may_create": visit.may("createTenant"),
        }
        return Page("tenants.html", values)

    async def create(self, visit: Visit) -> Redirect:
        tenant = await visit.acts.submit("createTenant", visit.form)
        return Redirect(f"/tenants/{tenant['id']}", f"Created {tenant['name']}.")

    async def one(self, visit: Visit) -> Page:
        acts = visit.acts
        tenant = await acts.read("readTenant", visit.path)
        policy = await acts.read("readRoutingPolicy", visit.path)
        values = {
            "tenant": tenant,
            "balance": await balance_of(visit),
            "window": (await acts.read("readSessionWindow", visit.path))["window"],
            "policy": policy,
            "aliases": "\n".join(f"{each['name']} = {each['model']}" for each in policy["aliases"]),
            "tiers": self._tiers,
            "windows": [(each.value, each.value) for each in SessionWindow],
            "preferences": [(each.value, each.value) for each in Preference],
            "may_change": visit.may("updateTenant"),
        }
        return Page("tenant.html", values)

    async def move(self, visit: Visit) -> Redirect:
        tenant = await visit.acts.submit("updateTenant", visit.form, visit.path)
        return _back(visit, f"{tenant['name']} is in the class {tenant['tier']}.")

    async def suspend(self, visit: Visit) -> Redirect:
        tenant = await visit.acts.change("suspendTenant", visit.path)
        return _back(visit, f"{tenant['name']} is suspended: its keys open nothing.")

    async def resume(self, visit: Visit) -> Redirect:
        tenant = await visit.acts.change("resumeTenant", visit.path)
        return _back(visit, f"{tenant['name']} is served again.")

    async def set_window(self, visit: Visit) -> Redirect:
        await visit.acts.submit("replaceSessionWindow", visit.form, visit.path)
        return _back(visit, "The session window is stated anew.")

    async def set_policy(self, visit: Visit) -> Redirect:
        pairs = pairs_of("aliases", visit.form.get("aliases"), "=", _ALIASES)
        aliases = [{"name": name, "model": model} for name, model in pairs]
        await visit.acts.submit("replaceRoutingPolicy", visit.form, visit.path, {"aliases": aliases})
        return _back(visit, "The routing policy is stated anew.")


async def balance_of(visit: Visit) -> Any:
    """A tenant's balance; None while the store of usage is away, which need not take the rest of a page along."""
    try:
        return await visit.acts.read("readBalance", visit.path)
    except APIError as error:
        if error.status != 503:
            raise
        return None


def _back(visit: Visit, said: str) -> Redirect:
    return Redirect(f"/tenants/{visit.path['tenant_id']}", said)


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
                "window": tenants.set_window,
                "policy": tenants.set_policy,
            },
        ),
    ]
