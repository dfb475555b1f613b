"""Limits of tenants, of their keys, and of models as a tenant uses them."""

from dataclasses import replace
from typing import Any

from sqlalchemy import select

from gateway.http.errors import invalid
from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import ADMINS, READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import Choice, ListOf, Member, Record, Text, answer, optional
from gateway.management.operations.wire import LIMIT, LIMITS, TENANT_ID, TENANT_NAME, limits_wire
from gateway.tenancy.grants import MAX_MODEL_CHARS
from gateway.tenancy.limits import (
    LIMIT_NAMES,
    Limits,
    ScopedLimits,
    ScopeKind,
    check_limits,
    limit_scope,
    read_limits,
    write_limits,
)
from gateway.tenancy.queries import require_tenant
from gateway.tenancy.tables import LimitRow, TenantRow

_BY_SCOPE = Listing("limits", (LimitRow.kind, LimitRow.scope_id))
_BY_TENANT = Listing("stated-limits", (LimitRow.tenant_id, LimitRow.kind, LimitRow.scope_id))
_COLUMNS = tuple(getattr(LimitRow, name) for name in ("kind", "scope_id", *LIMIT_NAMES))

STATED_LIMITS = answer("StatedLimits", {"tenant": TENANT_NAME, "tenant_id": TENANT_ID, **LIMITS.members})

ROUTES = Routes()
_PATH = "/tenants/{tenant_id}/limits"


@ROUTES.get(_PATH, READERS, page_of("LimitsPage", LIMITS), query=PAGE_QUERY)
async def list_limits(context: AdminContext, call: OperationInput) -> Any:
    """List the limits of a tenant, of its keys, and of models as it uses them. Other limits are those of its tier."""
    tenant_id = call.path["tenant_id"]
    statement = select(*_COLUMNS).where(LimitRow.tenant_id == tenant_id)
    async with context.reading() as connection:
        await require_tenant(connection, tenant_id)
        return await _BY_SCOPE.page(
            connection, statement, {**call.query, "tenant_id": tenant_id}, context.cursors, _row_wire
        )


@ROUTES.get(
    "/limits",
    READERS,
    page_of("StatedLimitsPage", STATED_LIMITS),
    query={**PAGE_QUERY, "tenant_id": optional(TENANT_ID)},
)
async def list_stated_limits(context: AdminContext, call: OperationInput) -> Any:
    """List the limits of all tenants, of their keys, and of models as they use them."""
    statement = select(LimitRow.tenant_id, TenantRow.name.label("tenant"), *_COLUMNS).join(
        TenantRow, TenantRow.id == LimitRow.tenant_id
    )
    if call.query["tenant_id"] is not None:
        statement = statement.where(LimitRow.tenant_id == call.query["tenant_id"])
    async with context.reading() as connection:
        return await _BY_TENANT.page(connection, statement, call.query, context.cursors, _stated_wire)


_SCOPE_MEMBERS = {
    "kind": Member(Choice(tuple(ScopeKind))),
    "scope_id": optional(Text(MAX_MODEL_CHARS), "A key's id or a model's name; omitted for the tenant."),
}


@ROUTES.write(
    "PUT",
    _PATH,
    ADMINS,
    LIMITS,
    body=Record("NewLimits", dict, {**_SCOPE_MEMBERS, **{name: optional(LIMIT) for name in LIMIT_NAMES}}),
)
async def replace_limits(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Replace all limits of a scope. An omitted limit is removed. Running gateways apply them within 5 seconds."""
    return await _write(context, change, call, {name: call.body[name] for name in LIMIT_NAMES})


@ROUTES.write(
    "PATCH",
    _PATH,
    ADMINS,
    LIMITS,
    body=Record(
        "LimitsChange",
        dict,
        {
            **_SCOPE_MEMBERS,
            **{name: optional(LIMIT) for name in LIMIT_NAMES},
            "remove": optional(ListOf(Choice(LIMIT_NAMES), len(LIMIT_NAMES)), "Limits to remove."),
        },
    ),
)
async def update_limits(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Change some limits of a scope. An omitted limit stays. Running gateways apply them within 5 seconds."""
    given = {name: call.body[name] for name in LIMIT_NAMES if call.body[name] is not None}
    removed = dict.fromkeys(call.body["remove"] or ())
    if both := given.keys() & removed.keys():
        raise invalid("remove", f"remove names a limit that the request sets: {min(both)}.")
    return await _write(context, change, call, {**given, **removed})


async def _write(context: AdminContext, change: Change, call: OperationInput, changes: dict[str, int | None]) -> Any:
    """Write `changes` to the limits of the scope that the body names; None removes a limit."""
    check_limits(changes)
    tenant = await context.tenants(change).tenant(call.path["tenant_id"])
    kind, scope_id = ScopeKind(call.body["kind"]), call.body["scope_id"] or ""
    if (kind is ScopeKind.TENANT) == bool(scope_id):
        raise invalid("scope_id", "scope_id must be a key's id or a model's name, and omitted for the tenant.")
    scope = await limit_scope(change.connection, tenant.id, kind, scope_id)
    stated = (await read_limits(change.connection, [tenant.id])).get(tenant.id, {}).get(kind, {})
    before = stated.get(scope.id, Limits())
    after = replace(before, **changes)
    await write_limits(change.connection, tenant.id, scope, changes)
    told = [limits_wire(ScopedLimits(kind, scope.id, limits)) for limits in (before, after)]
    resource_id = scope.id or tenant.id
    return change.record("replace", "limits", resource_id, tenant_id=tenant.id, before=told[0], after=told[1])


def _row_wire(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("kind", "scope_id", *LIMIT_NAMES)}


def _stated_wire(row: Any) -> dict[str, Any]:
    return {"tenant": row.tenant, "tenant_id": row.tenant_id, **_row_wire(row)}
