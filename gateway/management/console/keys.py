"""Tenants' keys: listed without secrets, made, narrowed, rotated, revoked. A key itself is in the one answer to the
form that made it."""

from typing import Any

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import reading
from gateway.management.console.form_parsing import moment_of, words_of
from gateway.management.console.screens import Page, PageRequest, Redirect, Screens
from gateway.management.operations.roles import READERS
from gateway.management.operations.timestamps import instant
from gateway.tenancy.changes import MAX_OVERLAP
from gateway.tenancy.grants import KeyScope

_SCOPES = tuple((each.value, each.value) for each in KeyScope)


SCREENS = Screens()


@SCREENS.get("/keys", "keys", "Keys", READERS, section="Manage", tenants=True)
async def listing(context: ConsoleContext, page_request: PageRequest) -> Page:
    """All keys there are, or a tenant's own."""
    page = await reading(page_request)("listKeys", query=page_request.query.given("cursor"))
    values = {
        "keys": _with_standing(context, page["data"]),
        "next": next_page("/keys", {}, page["next_cursor"]),
        "is_tenant": page_request.tenant is not None,
    }
    return Page("keys.html", values)


@SCREENS.get("/tenants/{tenant_id}/keys", "tenant_keys", "Keys of a tenant", READERS)
async def of_tenant(context: ConsoleContext, page_request: PageRequest) -> Page:
    actions = page_request.actions
    tenant = await actions.read("readTenant", page_request.path)
    page = await actions.read("listKeys", query={"tenant_id": tenant["id"], **page_request.query.given("cursor")})
    values = {
        "tenant": tenant,
        "keys": _with_standing(context, page["data"]),
        "next": next_page(f"/tenants/{tenant['id']}/keys", {}, page["next_cursor"]),
        "scopes": _SCOPES,
        "may_create": page_request.may("createKey"),
    }
    return Page("tenant_keys.html", values)


@SCREENS.post("tenant_keys", "create")
async def create(context: ConsoleContext, page_request: PageRequest) -> Page:
    more = {
        "models": words_of(page_request.form.get("models")),
        "expires_at": moment_of(page_request.form.get("expires_at")),
    }
    key = await page_request.actions.submit("createKey", page_request.form, page_request.path, more)
    return Page("key_shown.html", {"key": key, "retired": None}, 201)


@SCREENS.get("/keys/{key_id}", "key", "Key", READERS)
async def one(context: ConsoleContext, page_request: PageRequest) -> Page:
    key = await page_request.actions.read("readKey", page_request.path)
    values = {
        "key": _with_standing(context, [key])[0],
        "tenant": await page_request.actions.read("readTenant", {"tenant_id": key["tenant_id"]}),
        "scopes": _SCOPES,
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
    models = words_of(page_request.form.get("models"))
    await page_request.actions.submit("setKeyGrants", page_request.form, page_request.path, {"models": models})
    return page_request.saved("Key permissions updated.")


@SCREENS.post("key", "revoke")
async def revoke(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    await page_request.actions.change("revokeKey", page_request.path)
    return page_request.saved("Key revoked. Running gateways reject it within 5 seconds.")


def _with_standing(context: ConsoleContext, keys: list[dict[str, Any]]) -> list[dict[str, Any]]:
    now = instant(context.now())
    return [key | {"standing": _standing(key, now)} for key in keys]


def _standing(key: dict[str, Any], now: str) -> tuple[str, str]:
    """A key's current state in a word, and the tone of its badge."""
    if key["revoked_at"] is not None:
        return "revoked", "bad"
    if key["expires_at"] is not None and key["expires_at"] <= now:
        return "ended", "bad"
    if key["rotated_to"] is not None:
        return "rotated", "warn"
    return "in use", "good"
