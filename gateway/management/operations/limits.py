"""Limits of tenants, of their keys, and of models as a tenant uses them."""

from dataclasses import replace
from typing import Any

from sqlalchemy import select

from gateway.http.errors import invalid
from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import ADMINS, READERS
from gateway.management.operations.routes import OperationInput, Route
from gateway.management.operations.schema import Choice, Member, Record, Text, optional
from gateway.management.operations.wire import LIMIT, LIMITS
from gateway.tenancy.grants import MAX_MODEL_CHARS
from gateway.tenancy.limits import LIMIT_NAMES, Limits, ScopeKind, check_limits, limit_scope, read_limits, write_limits
from gateway.tenancy.queries import require_tenant
from gateway.tenancy.tables import LimitRow

_BY_SCOPE = Listing("limits", (LimitRow.kind, LimitRow.scope_id))
_COLUMNS = tuple(getattr(LimitRow, name) for name in ("kind", "scope_id", *LIMIT_NAMES))


class StatedLimits:
    """Handlers."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    async def list_all(self, call: OperationInput) -> Any:
        tenant_id = call.path["tenant_id"]
        statement = select(*_COLUMNS).where(LimitRow.tenant_id == tenant_id)
        async with self._context.reading() as connection:
            await require_tenant(connection, tenant_id)
            return await _BY_SCOPE.page(
                connection, statement, {**call.query, "tenant_id": tenant_id}, self._context.cursors, _row_wire
            )

    async def replace(self, change: Change, call: OperationInput) -> Any:
        """Limits that `call.body` does not name stay. A body that came as JSON names all: what it left out is None."""
        body: dict[str, Any] = call.body
        changes = {name: body[name] for name in LIMIT_NAMES if name in body}
        check_limits(changes)
        tenant = await self._context.tenants(change).tenant(call.path["tenant_id"])
        kind, scope_id = ScopeKind(body["kind"]), body["scope_id"] or ""
        if (kind is ScopeKind.TENANT) == bool(scope_id):
            raise invalid("scope_id", "scope_id is a key's id or a model's name, and left out for the tenant's limits.")
        scope = await limit_scope(change.connection, tenant.id, kind, scope_id)
        stated = (await read_limits(change.connection, [tenant.id])).get(tenant.id, {}).get(kind, {})
        before = stated.get(scope.id, Limits())
        after = replace(before, **changes)
        await write_limits(change.connection, tenant.id, scope, changes)
        told = [_wire(kind.value, scope.id, limits) for limits in (before, after)]
        change.record("replace", "limits", scope.id or tenant.id, tenant_id=tenant.id, before=told[0], after=told[1])
        return told[1]


def _wire(kind: str, scope_id: str, limits: Limits) -> dict[str, Any]:
    return {"kind": kind, "scope_id": scope_id} | {name: getattr(limits, name) for name in LIMIT_NAMES}


def _row_wire(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in ("kind", "scope_id", *LIMIT_NAMES)}


def limit_routes(context: AdminContext) -> list[Route]:
    limits = StatedLimits(context)
    path = "/tenants/{tenant_id}/limits"
    return [
        Route(
            name="listLimits",
            about="List what is stated for a tenant, its keys, and models as it uses them. The rest is its tier's.",
            method="GET",
            path=path,
            allowed=READERS,
            query=PAGE_QUERY,
            answer=page_of("LimitsPage", LIMITS),
            read=limits.list_all,
        ),
        Route(
            name="replaceLimits",
            about="State all limits of a scope; one that is left out does not bind. Gateways follow within 5 seconds.",
            method="PUT",
            path=path,
            allowed=ADMINS,
            body=Record(
                "NewLimits",
                dict,
                {
                    "kind": Member(Choice(tuple(ScopeKind))),
                    "scope_id": optional(
                        Text(MAX_MODEL_CHARS), "A key's id or a model's name; left out for the tenant."
                    ),
                    **{name: optional(LIMIT) for name in LIMIT_NAMES},
                },
            ),
            answer=LIMITS,
            write=limits.replace,
        ),
    ]
