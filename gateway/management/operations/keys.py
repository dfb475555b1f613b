"""Tenants' keys: made, narrowed, rotated, revoked."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import or_

from gateway.http.errors import invalid
from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import ADMINS, READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import Boolean, Instant, Record, Text, optional
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
from gateway.tenancy.tables import KeyRow, TenantRow

DEFAULT_OVERLAP = timedelta(hours=24)

_BY_AGE = Listing("keys", (KeyRow.created_at, KeyRow.public_id))
_SCOPES = optional(SCOPES, "Allowed scopes. Default: all, including future ones.")
_MODELS = optional(MODELS, "Allowed models. Default: all, including future ones.")


@dataclass(frozen=True, slots=True)
class NewKey:
    name: str | None
    scopes: list[str] | None
    models: list[str] | None
    expires_at: datetime | None


ROUTES = Routes()
_ONE = "/keys/{key_id}"
_FILTERS = {
    "tenant_id": optional(TENANT_ID),
    "search": optional(Text(64), "Part of its name, its id, its last characters or its tenant's name."),
    "revoked": optional(Boolean()),
}


@ROUTES.get("/keys", READERS, page_of("KeyPage", KEY), query={**PAGE_QUERY, **_FILTERS})
async def list_keys(context: AdminContext, call: OperationInput) -> Any:
    """List keys by age, including revoked ones."""
    statement = KEY_COLUMNS
    if call.query["revoked"] is not None:
        revoked = KeyRow.revoked_at.is_not(None)
        statement = statement.where(revoked if call.query["revoked"] else ~revoked)
    if call.query["search"] is not None:
        columns = (KeyRow.name, KeyRow.public_id, KeyRow.last_four, TenantRow.name)
        statement = statement.where(or_(*(each.icontains(call.query["search"], autoescape=True) for each in columns)))
    if call.query["tenant_id"] is not None:
        statement = statement.where(KeyRow.tenant_id == call.query["tenant_id"])
    async with context.reading() as connection:
        return await _BY_AGE.page(
            connection, statement, call.query, context.cursors, lambda row: key_wire(key_record(row))
        )


@ROUTES.get(_ONE, READERS, KEY)
async def read_key(context: AdminContext, call: OperationInput) -> Any:
    """Read a key."""
    async with context.reading() as connection:
        return key_wire(await key_of(connection, call.path["key_id"]))


@ROUTES.write(
    "POST",
    "/tenants/{tenant_id}/keys",
    ADMINS,
    CREATED_KEY,
    body=Record(
        "NewKey",
        NewKey,
        {
            "name": optional(KEY_NAME, "Purpose of the key."),
            "scopes": _SCOPES,
            "models": _MODELS,
            "expires_at": optional(Instant(), "Expiry. Default: none."),
        },
    ),
    status=201,
)
async def create_key(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Create a key of a tenant. Only this answer contains the key itself."""
    body: NewKey = call.body
    tenants = context.tenants(change)
    tenant = await tenants.tenant(call.path["tenant_id"])
    grant = KeyGrant(body.name or "", body.scopes, body.models, body.expires_at)
    created = await tenants.create_key(tenant, grant)
    _record(change, "create", None, created.record)
    return _with_secret(created)


@ROUTES.write(
    "POST",
    f"{_ONE}/rotate",
    ADMINS,
    ROTATED_KEY,
    body=Record(
        "Rotation",
        dict,
        {
            "old_valid_until": optional(
                Instant(),
                f"Until when the old key opens too, at most {MAX_OVERLAP.days} days from now; a moment that "
                "has passed ends it at once. 24 hours from now by default.",
            )
        },
    ),
    status=201,
)
async def rotate_key(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Rotate a key: create a successor with the same name, permissions and limits."""
    tenants = context.tenants(change)
    old = await tenants.key(call.path["key_id"])
    try:
        retired, created = await tenants.rotate_key(old, call.body["old_valid_until"] or change.at + DEFAULT_OVERLAP)
    except InvalidExpiry as error:
        raise invalid("old_valid_until", f"{error}.") from None
    _record(change, "rotate", old, retired)
    _record(change, "create", None, created.record)
    return {"retired": key_wire(retired), "successor": _with_secret(created)}


@ROUTES.write("PUT", f"{_ONE}/grants", ADMINS, KEY, body=Record("Grants", dict, {"scopes": _SCOPES, "models": _MODELS}))
async def set_key_grants(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Replace the permissions of a key. Running gateways apply them within 5 seconds."""
    tenants = context.tenants(change)
    before = await tenants.key(call.path["key_id"])
    after = await tenants.set_grants(before, **call.body)
    return _record(change, "set_grants", before, after)


@ROUTES.write("POST", f"{_ONE}/revoke", ADMINS, KEY)
async def revoke_key(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Revoke a key permanently. It is rejected within 5 seconds."""
    tenants = context.tenants(change)
    before = await tenants.key(call.path["key_id"])
    return _record(change, "revoke", before, await tenants.revoke_key(before))


def _record(change: Change, action: str, before: KeyRecord | None, after: KeyRecord) -> dict[str, Any]:
    """Add the audit entry and return the answer."""
    earlier = None if before is None else key_wire(before)
    wire = key_wire(after)
    return change.record(action, "key", after.public_id, tenant_id=after.tenant_id, before=earlier, after=wire)


def _with_secret(created: CreatedKey) -> dict[str, Any]:
    return key_wire(created.record) | {"key": created.plaintext}
