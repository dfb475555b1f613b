"""Tenants' keys: found, listed without secrets, created, narrowed, rotated, revoked. A key itself is in the one answer
to the form that created it."""

from collections.abc import Sequence
from typing import Any

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import reading
from gateway.management.console.form_parsing import moment_of
from gateway.management.console.pickers import as_options, model_names, models_of
from gateway.management.console.screens import Page, PageRequest, Redirect, Screens
from gateway.management.operations.roles import READERS
from gateway.management.operations.timestamps import instant
from gateway.tenancy.changes import MAX_OVERLAP
from gateway.tenancy.grants import KeyScope

_SCOPES = tuple((each.value, each.value) for each in KeyScope)
_FILTERS = ("search", "revoked")

SCREENS = Screens()


@SCREENS.get("/keys", "keys", "Keys", READERS, section="Manage", tenants=True)
async def listing(context: ConsoleContext, page_request: PageRequest) -> Page:
    """Keys of all tenants, or a tenant's own."""
    filters = page_request.query.given(*_FILTERS)
    query = {**filters, **page_request.query.given("cursor")}
    page = await reading(page_request)("listKeys", query=query)
    values = {
        "keys": await _described(context, page_request, page["data"]),
        "next": next_page("/keys", filters, page["next_cursor"]),
        "filters": filters,
        "is_tenant": page_request.tenant is not None,
    }
    return Page("keys.html", values)


@SCREENS.get("/tenants/{tenant_id}/keys", "tenant_keys", "Keys of a tenant", READERS)
async def of_tenant(context: ConsoleContext, page_request: PageRequest) -> Page:
    actions = page_request.actions
    tenant = await actions.read("readTenant", page_request.path)
    filters = page_request.query.given(*_FILTERS)
    query = {"tenant_id": tenant["id"], **filters, **page_request.query.given("cursor")}
    page = await actions.read("listKeys", query=query)
    values = {
        "tenant": tenant,
        "keys": await _described(context, page_request, page["data"]),
        "next": next_page(f"/tenants/{tenant['id']}/keys", filters, page["next_cursor"]),
        "filters": filters,
        "scopes": _SCOPES,
        "models": as_options(model_names(context)),
        "may_create": page_request.may("createKey"),
    }
    return Page("tenant_keys.html", values)


@SCREENS.post("tenant_keys", "create")
async def create(context: ConsoleContext, page_request: PageRequest) -> Page:
    more = {
        "models": models_of(page_request.form),
        "expires_at": moment_of(page_request.form.get("expires_at")),
    }
    key = await page_request.actions.submit("createKey", page_request.form, page_request.path, more)
    return Page("key_shown.html", {"key": key, "retired": None}, 201)


@SCREENS.get("/keys/{key_id}", "key", "Key", READERS)
async def one(context: ConsoleContext, page_request: PageRequest) -> Page:
    key = await page_request.actions.read("readKey", page_request.path)
    served = model_names(context)
    values = {
        "key": (await _described(context, page_request, [key]))[0],
        "tenant": await page_request.actions.read("readTenant", {"tenant_id": key["tenant_id"]}),
        "scopes": _SCOPES,
        "models": as_options(served),
        "other_models": [model for model in key["models"] or () if model not in served],
        "overlap_days": MAX_OVERLAP.days,
        "may_change": page_request.may("revokeKey"),
    }
    return Page("key.html", values)


@SCREENS.post("key", "rotate")
async def rotate(context: ConsoleContext, page_request: PageRequest) -> Page:
    until = moment_of(page_request.form.get("old_valid_until"))
    answer = await page_request.actions.change("rotateKey", page_request.path, {"old_valid_until": until})
    return Page("key_shown.html", {"key": answer["successor"], "retired": answer["retired"]}, 201)


@SCREENS.post("key", "narrow")
async def narrow(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    models = models_of(page_request.form)
    await page_request.actions.submit("setKeyGrants", page_request.form, page_request.path, {"models": models})
    return page_request.saved("Key permissions updated.")


@SCREENS.post("key", "revoke")
async def revoke(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    await page_request.actions.change("revokeKey", page_request.path)
    return page_request.saved("Key revoked. Running gateways reject it within 5 seconds.")


async def _described(
    context: ConsoleContext, page_request: PageRequest, keys: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The keys with their status and what `readKeyUse` knows of them."""
    if not keys:
        return []
    query = {"ids": ",".join(key["id"] for key in keys)}
    uses = {each["id"]: each for each in (await reading(page_request)("readKeyUse", query=query))["data"]}
    now = instant(context.now())
    return [{**key, **uses[key["id"]], "status": _status(key, uses[key["id"]], now)} for key in keys]


def _status(key: dict[str, Any], use: dict[str, Any], now: str | None) -> tuple[str, str]:
    """A key's current state in a word, and the tone of its badge."""
    if key["revoked_at"] is not None:
        return "revoked", "bad"
    if key["expires_at"] is not None and key["expires_at"] <= now:
        return "expired", "bad"
    if use["tenant_is_suspended"]:
        return "suspended", "bad"
    if key["rotated_to"] is not None:
        return "rotated", "warn"
    return "active", "good"
