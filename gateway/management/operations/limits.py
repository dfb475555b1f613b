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
from gateway.management.operations.schema import Choice, Member, Record, Text, optional
from gateway.management.operations.wire import LIMIT, LIMITS, limits_wire
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
from gateway.tenancy.tables import LimitRow

_BY_SCOPE = Listing("limits", (LimitRow.kind, LimitRow.scope_id))
_COLUMNS = tuple(getattr(LimitRow, name) for name in ("kind", "scope_id", *LIMIT_NAMES))


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


@ROUTES.write(
    "PUT",
    _PATH,
    ADMINS,
    LIMITS,
    body=Record(
        "NewLimits",
        dict,
        {
            "kind": Member(Choice(tuple(ScopeKind))),
            "scope_id": optional(Text(MAX_MODEL_CHARS), "A key's id or a model's name; omitted for the tenant."),
            **{name: optional(LIMIT) for name in LIMIT_NAMES},
        },
    ),
)
async def replace_limits(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Replace all limits of a scope. An omitted limit is removed. Running gateways apply them within 5 seconds.

    Limits that `call.body` does not name stay. A body that came as JSON names all: what it left out is None.
    """
    body: dict[str, Any] = call.body
    changes = {name: body[name] for name in LIMIT_NAMES if name in body}
    check_limits(changes)
    tenant = await context.tenants(change).tenant(call.path["tenant_id"])
    kind, scope_id = ScopeKind(body["kind"]), body["scope_id"] or ""
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
