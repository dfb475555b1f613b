"""Tenants' keys: made, narrowed, rotated, revoked."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gateway.http.errors import invalid
from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import ADMINS, READERS
from gateway.management.operations.routes import OperationInput, Route
from gateway.management.operations.schema import Instant, Record, optional
from gateway.management.operations.wire import (
    CREATED_KEY,
    KEY,
    KEY_NAME,
    MODELS,
    ROTATED_KEY,
    SCOPES,
    TENANT_ID,
    key_wire,
)
from gateway.tenancy.changes import MAX_OVERLAP, KeyGrant
from gateway.tenancy.errors import InvalidExpiry
from gateway.tenancy.queries import KEY_COLUMNS, key_of, key_record
from gateway.tenancy.records import CreatedKey, KeyRecord
from gateway.tenancy.tables import KeyRow

DEFAULT_OVERLAP = timedelta(hours=24)

_BY_AGE = Listing("keys", (KeyRow.created_at, KeyRow.public_id))
_SCOPES = optional(SCOPES, "What it may be used for; everything by default, also what is to come.")
_MODELS = optional(MODELS, "Which models it may name; all by default.")


@dataclass(frozen=True, slots=True)
class NewKey:
    name: str | None
    scopes: list[str] | None
    models: list[str] | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class Rotation:
    old_valid_until: datetime | None


@dataclass(frozen=True, slots=True)
class Grants:
    scopes: list[str] | None
    models: list[str] | None


class Keys:
    """Handlers."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    async def list_all(self, call: OperationInput) -> Any:
        statement = KEY_COLUMNS
        if call.query["tenant_id"] is not None:
            statement = statement.where(KeyRow.tenant_id == call.query["tenant_id"])
        async with self._context.reading() as connection:
            return await _BY_AGE.page(
                connection, statement, call.query, self._context.cursors, lambda row: key_wire(key_record(row))
            )

    async def read(self, call: OperationInput) -> Any:
        async with self._context.reading() as connection:
            return key_wire(await key_of(connection, call.path["key_id"]))

    async def create(self, change: Change, call: OperationInput) -> Any:
        body: NewKey = call.body
        tenants = self._context.tenants(change)
        tenant = await tenants.tenant(call.path["tenant_id"])
        grant = KeyGrant(body.name or "", body.scopes, body.models, body.expires_at)
        created = await tenants.create_key(tenant, grant)
        _record(change, "create", None, created.record)
        return _with_secret(created)

    async def rotate(self, change: Change, call: OperationInput) -> Any:
        body: Rotation = call.body
        tenants = self._context.tenants(change)
        old = await tenants.key(call.path["key_id"])
        try:
            retired, created = await tenants.rotate_key(old, body.old_valid_until or change.at + DEFAULT_OVERLAP)
        except InvalidExpiry as error:
            raise invalid("old_valid_until", f"{error}.") from None
        _record(change, "rotate", old, retired)
        _record(change, "create", None, created.record)
        return {"retired": key_wire(retired), "successor": _with_secret(created)}

    async def set_grants(self, change: Change, call: OperationInput) -> Any:
        body: Grants = call.body
        tenants = self._context.tenants(change)
        before = await tenants.key(call.path["key_id"])
        after = await tenants.set_grants(before, body.scopes, body.models)
        return _record(change, "set_grants", before, after)

    async def revoke(self, change: Change, call: OperationInput) -> Any:
        tenants = self._context.tenants(change)
        before = await tenants.key(call.path["key_id"])
        return _record(change, "revoke", before, await tenants.revoke_key(before))


def _record(change: Change, action: str, before: KeyRecord | None, after: KeyRecord) -> dict[str, Any]:
    """Add the audit entry and return the answer."""
    wire = key_wire(after)
    earlier = None if before is None else key_wire(before)
    change.record(action, "key", after.public_id, tenant_id=after.tenant_id, before=earlier, after=wire)
    return wire


def _with_secret(created: CreatedKey) -> dict[str, Any]:
    return key_wire(created.record) | {"key": created.plaintext}


def key_routes(context: AdminContext) -> list[Route]:
    keys = Keys(context)
    one = "/keys/{key_id}"
    return [
        Route(
            name="createKey",
            about="Create a key of a tenant. The key itself is in this answer and nowhere else.",
            method="POST",
            path="/tenants/{tenant_id}/keys",
            allowed=ADMINS,
            body=Record(
                "NewKey",
                NewKey,
                {
                    "name": optional(KEY_NAME, "What it is for."),
                    "scopes": _SCOPES,
                    "models": _MODELS,
                    "expires_at": optional(Instant(), "When it ends by itself."),
                },
            ),
            answer=CREATED_KEY,
            status=201,
            write=keys.create,
        ),
        Route(
            name="listKeys",
            about="List keys by age, revoked ones too.",
            method="GET",
            path="/keys",
            allowed=READERS,
            query={**PAGE_QUERY, "tenant_id": optional(TENANT_ID)},
            answer=page_of("KeyPage", KEY),
            read=keys.list_all,
        ),
        Route(name="readKey", about="Read a key.", method="GET", path=one, allowed=READERS, answer=KEY, read=keys.read),
        Route(
            name="rotateKey",
            about="Give a key a successor with the same name, grants and limits, and the old one some time more.",
            method="POST",
            path=f"{one}/rotate",
            allowed=ADMINS,
            body=Record(
                "Rotation",
                Rotation,
                {
                    "old_valid_until": optional(
                        Instant(),
                        f"Until when the old key opens too, at most {MAX_OVERLAP.days} days from now; a moment that "
                        "has passed ends it at once. 24 hours from now by default.",
                    )
                },
            ),
            answer=ROTATED_KEY,
            status=201,
            write=keys.rotate,
        ),
        Route(
            name="setKeyGrants",
            about="Say anew what a key may do. Running gateways follow within 5 seconds.",
            method="PUT",
            path=f"{one}/grants",
            allowed=ADMINS,
            body=Record("Grants", Grants, {"scopes": _SCOPES, "models": _MODELS}),
            answer=KEY,
            write=keys.set_grants,
        ),
        Route(
            name="revokeKey",
            about="Refuse a key, within 5 seconds, for good.",
            method="POST",
            path=f"{one}/revoke",
            allowed=ADMINS,
            answer=KEY,
            write=keys.revoke,
        ),
    ]
