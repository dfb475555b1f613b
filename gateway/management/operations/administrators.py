"""Administrators' keys: listed, created, revoked."""

from dataclasses import dataclass
from typing import Any

from gateway.http.errors import APIError
from gateway.management.operations.admin_keys import (
    RECORDS,
    AdminKeyRecord,
    admin_key_record,
    insert_admin_key,
    mark_revoked,
)
from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import ADMINS, READERS, Role
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import (
    Boolean,
    Choice,
    Instant,
    Kind,
    Member,
    Record,
    Text,
    answer,
    nullable,
    optional,
)
from gateway.management.operations.timestamps import instant
from gateway.management.operations.wire import KEY_ID
from gateway.tenancy.changes import MAX_KEY_NAME_CHARS
from gateway.tenancy.tables import AdminKeyRow

_BY_AGE = Listing("admin-keys", (AdminKeyRow.created_at, AdminKeyRow.public_id))
_NAME = Text(MAX_KEY_NAME_CHARS)
_ROLE = Choice(tuple(Role))
_MEMBERS: dict[str, Member | Kind] = {
    "id": Member(KEY_ID, "The public part of the key, between its dashes."),
    "name": _NAME,
    "role": _ROLE,
    "last_four": Text(4, 4),
    "created_at": Instant(),
    "last_used_at": nullable(Instant(), "To the minute."),
    "revoked_at": nullable(Instant()),
}
ADMIN_KEY = answer("AdminKey", _MEMBERS)
CREATED_ADMIN_KEY = answer(
    "CreatedAdminKey",
    _MEMBERS | {"key": Member(Text(64), "The key itself. It is shown only once.", secret=True)},
)


@dataclass(frozen=True, slots=True)
class NewAdminKey:
    name: str
    role: Role


ROUTES = Routes()


@ROUTES.get(
    "/admin-keys", READERS, page_of("AdminKeyPage", ADMIN_KEY), query={**PAGE_QUERY, "revoked": optional(Boolean())}
)
async def list_admin_keys(context: AdminContext, call: OperationInput) -> Any:
    """List administrators' keys by age."""
    statement = RECORDS
    if call.query["revoked"] is not None:
        revoked = AdminKeyRow.revoked_at.is_not(None)
        statement = statement.where(revoked if call.query["revoked"] else ~revoked)
    async with context.reading() as connection:
        return await _BY_AGE.page(
            connection, statement, call.query, context.cursors, lambda row: _wire(admin_key_record(row))
        )


@ROUTES.write(
    "POST",
    "/admin-keys",
    ADMINS,
    CREATED_ADMIN_KEY,
    body=Record(
        "NewAdminKey",
        NewAdminKey,
        {
            "name": Member(_NAME, "Name of the owner or of the purpose."),
            "role": Member(
                _ROLE,
                "admin: everything; billing: prices, invoices, credit, reads all but the audit log; viewer: reads.",
            ),
        },
    ),
    status=201,
)
async def create_admin_key(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Create a key of an administrator. Only this answer contains the key itself."""
    body: NewAdminKey = call.body
    created = await insert_admin_key(change, context.pepper, body.name, body.role)
    return _wire(created.record) | {"key": created.plaintext}


@ROUTES.write("POST", "/admin-keys/{key_id}/revoke", ADMINS, ADMIN_KEY)
async def revoke_admin_key(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Revoke a key of an administrator permanently. Its requests are rejected within 5 seconds, its changes at once.
    No key revokes itself, so the last key cannot be lost."""
    if call.path["key_id"] == call.administrator.key_id:
        raise APIError(409, "A key cannot revoke itself: use another one, or turnpike admin-key.", code="own_key")
    return _wire(await mark_revoked(change, call.path["key_id"]))


def _wire(key: AdminKeyRecord) -> dict[str, Any]:
    return {
        "id": key.public_id,
        "name": key.name,
        "role": key.role.value,
        "last_four": key.last_four,
        "created_at": instant(key.created_at),
        "last_used_at": instant(key.last_used_at),
        "revoked_at": instant(key.revoked_at),
    }
