"""Tenants' keys: listed without secrets, made, narrowed, rotated, revoked. A key itself is in the one answer to the
form that made it."""

from typing import Any

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.own import OwnRecords
from gateway.management.console.screens import Page, Redirect, Screen, Visit
from gateway.management.console.typed import moment_of, words_of
from gateway.management.operations.moments import instant
from gateway.management.operations.roles import READERS
from gateway.tenancy.changes import MAX_OVERLAP
from gateway.tenancy.grants import KeyScope

_SCOPES = tuple((each.value, each.value) for each in KeyScope)


class Keys:
    """Handlers."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context

    async def listing(self, visit: Visit) -> Page:
        """All keys there are, or a tenant's own."""
        query = visit.query.given("cursor")
        if visit.tenant is None:
            page = await visit.acts.read("listKeys", query=query)
        else:
            page = await OwnRecords(visit.operations, visit.tenant).read("listKeys", query=query)
        values = {
            "keys": self._standing(page["data"]),
            "next": next_page("/keys", {}, page["next_cursor"]),
            "is_tenant": visit.tenant is not None,
        }
        return Page("keys.html", values)

    async def of_tenant(self, visit: Visit) -> Page:
        acts = visit.acts
        tenant = await acts.read("readTenant", visit.path)
        page = await acts.read("listKeys", query={"tenant_id": tenant["id"], **visit.query.given("cursor")})
        values = {
            "tenant": tenant,
            "keys": self._standing(page["data"]),
            "next": next_page(f"/tenants/{tenant['id']}/keys", {}, page["next_cursor"]),
            "scopes": _SCOPES,
            "may_create": visit.may("createKey"),
        }
        return Page("tenant_keys.html", values)

    async def create(self, visit: Visit) -> Page:
        more = {"models": words_of(visit.form.get("models")), "expires_at": moment_of(visit.form.get("expires_at"))}
        key = await visit.acts.submit("createKey", visit.form, visit.path, more)
        return Page("key_shown.html", {"key": key, "retired": None}, 201)

    async def one(self, visit: Visit) -> Page:
        key = await visit.acts.read("readKey", visit.path)
        values = {
            "key": self._standing([key])[0],
            "tenant": await visit.acts.read("readTenant", {"tenant_id": key["tenant_id"]}),
            "scopes": _SCOPES,
            "overlap_days": MAX_OVERLAP.days,
            "may_change": visit.may("revokeKey"),
        }
        return Page("key.html", values)

    async def rotate(self, visit: Visit) -> Page:
        until = moment_of(visit.form.get("old_valid_until"))
        answer = await visit.acts.change("rotateKey", visit.path, {"old_valid_until": until})
        return Page("key_shown.html", {"key": answer["successor"], "retired": answer["retired"]}, 201)

    async def narrow(self, visit: Visit) -> Redirect:
        models = words_of(visit.form.get("models"))
        await visit.acts.submit("setKeyGrants", visit.form, visit.path, {"models": models})
        return _back(visit, "What the key may do is stated anew.")

    async def revoke(self, visit: Visit) -> Redirect:
        await visit.acts.change("revokeKey", visit.path)
        return _back(visit, "The key is revoked. Running gateways refuse it within 5 seconds.")

    def _standing(self, keys: list[dict[str, Any]]) -> list[dict[str, Any]]:
        now = instant(self._context.now())
        return [key | {"standing": _standing(key, now)} for key in keys]


def _standing(key: dict[str, Any], now: str) -> tuple[str, str]:
    """What a key is at the moment, in a word, and the tone that goes with it."""
    if key["revoked_at"] is not None:
        return "revoked", "bad"
    if key["expires_at"] is not None and key["expires_at"] <= now:
        return "ended", "bad"
    if key["rotated_to"] is not None:
        return "rotated", "warn"
    return "in use", "good"


def _back(visit: Visit, said: str) -> Redirect:
    return Redirect(f"/keys/{visit.path['key_id']}", said)


def screens(context: ConsoleContext) -> list[Screen]:
    keys = Keys(context)
    return [
        Screen(
            path="/keys",
            name="keys",
            title="Keys",
            section="Manage",
            allowed=READERS,
            tenants=True,
            get=keys.listing,
        ),
        Screen(
            path="/tenants/{tenant_id}/keys",
            name="tenant_keys",
            title="Keys of a tenant",
            allowed=READERS,
            get=keys.of_tenant,
            post={"create": keys.create},
        ),
        Screen(
            path="/keys/{key_id}",
            name="key",
            title="Key",
            allowed=READERS,
            get=keys.one,
            post={"rotate": keys.rotate, "narrow": keys.narrow, "revoke": keys.revoke},
        ),
    ]
