"""Limits: what is stated, what of it is used and held now, when it is reset."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import chosen, naming, nanodollars_of
from gateway.management.console.pickers import key_options, model_names
from gateway.management.console.screens import Page, PageRequest, Redirect, Screens
from gateway.management.console.tenant_scoped_reads import TenantScopedReads
from gateway.management.operations.roles import READERS
from gateway.management.operations.wire import limits_wire
from gateway.tenancy.limits import LIMIT_NAMES, ScopeKind
from gateway.tenancy.records import Principal

_TENANTS = "20"
"""The number of tenants on a page: each costs a read of the store of limits."""
_MONEY = "nanodollars_per_month"
WORDS: Mapping[str, str] = {
    "requests_per_minute": "Requests a minute",
    "tokens_per_minute": "Tokens a minute",
    "tokens_per_day": "Tokens a day (UTC)",
    "concurrent": "Requests at once",
    "context_tokens": "Tokens of a context",
    "nanodollars_per_month": "Dollars a month (UTC)",
    "credit_nanodollars": "Dollars paid in advance",
}
_SPELLING: Mapping[str, Any] = {"words": WORDS, "names": LIMIT_NAMES}
_NUMBERS = tuple(name for name in LIMIT_NAMES if name != _MONEY)

SCREENS = Screens()


@SCREENS.get("/tenants/{tenant_id}/limits", "tenant_limits", "Limits of a tenant", READERS)
async def of_tenant(context: ConsoleContext, page_request: PageRequest) -> Page:
    """`?kind=` and `?scope_id=` choose what the form at the end starts with."""
    actions = page_request.actions
    tenant = await actions.read("readTenant", page_request.path)
    stated = await actions.read("listLimits", page_request.path, page_request.query.given("cursor"))
    keys = await key_options(page_request, tenant["id"])
    values = {
        "tenant": tenant,
        "keys": dict(keys),
        "scopes": [*keys, *((name, "model") for name in model_names(context))],
        "counters": (await actions.read("readLimitUse", page_request.path))["data"],
        "stated": stated["data"],
        "next": next_page(f"/tenants/{tenant['id']}/limits", {}, stated["next_cursor"]),
        **_SPELLING,
        "numbers": _NUMBERS,
        "kinds": tuple((each.value, each.value) for each in ScopeKind),
        "start": _start(page_request, stated["data"]),
        "may_state": page_request.may("replaceLimits"),
    }
    return Page("tenant_limits.html", values)


def _start(page_request: PageRequest, stated: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    kind, scope_id = page_request.query.get("kind", ScopeKind.TENANT), page_request.query.get("scope_id")
    nothing = {"kind": kind, "scope_id": scope_id, **dict.fromkeys(LIMIT_NAMES)}
    return next((each for each in stated if (each["kind"], each["scope_id"]) == (kind, scope_id)), nothing)


@SCREENS.post("tenant_limits", "state")
async def state(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    """State all limits of a scope: an empty field removes its limit."""
    budget = nanodollars_of("dollars_per_month", page_request.form.get("dollars_per_month"))
    with naming(nanodollars_per_month="dollars_per_month"), chosen("key_not_found", "scope_id"):
        await page_request.actions.submit("replaceLimits", page_request.form, page_request.path, {_MONEY: budget})
    return page_request.saved("Limits updated. Running gateways apply them within 5 seconds.")


@SCREENS.get("/limits", "limits", "Limits", READERS, section="Manage", tenants=True)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    """An administrator's are of all tenants, a tenant's its own."""
    return await of_all(page_request) if page_request.tenant is None else await own(page_request, page_request.tenant)


async def of_all(page_request: PageRequest) -> Page:
    """Tenants by name, each with the counter that is nearest to its limit."""
    filters = page_request.query.given("search")
    found = await page_request.actions.read(
        "listTenants", query={"limit": _TENANTS, **filters, **page_request.query.given("cursor")}
    )
    rows = []
    for tenant in found["data"]:
        use = await page_request.actions.read("readLimitUse", {"tenant_id": tenant["id"]})
        rows.append((tenant, max(use["data"], key=_fullness, default=None)))
    values = {"rows": rows, "filters": filters, "words": WORDS}
    return Page("limits.html", values | {"next": next_page("/limits", filters, found["next_cursor"])})


def _fullness(counter: Mapping[str, Any]) -> float:
    used, limit = counter["used"], counter["limit"]
    return float(used / limit) if limit else 1.0


async def own(page_request: PageRequest, principal: Principal) -> Page:
    """As `/v1/limits` has it, with what is held."""
    mine = TenantScopedReads(page_request.operations, principal)
    use = await mine.read("readLimitUse")
    stated = [limits_wire(each) for each in principal.limits]
    values = {
        "tier": use["tier"],
        "counters": [each for each in use["data"] if mine.concerns(each)],
        "stated": [each for each in stated if mine.concerns(each)],
        **_SPELLING,
    }
    return Page("own_limits.html", values)
