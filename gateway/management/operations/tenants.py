"""Tenants: who is served, and in which class."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import ADMINS, READERS
from gateway.management.operations.routes import OperationInput, Route
from gateway.management.operations.schema import Boolean, Choice, Member, Record, Text, optional
from gateway.management.operations.wire import TENANT, TENANT_NAME, tenant_wire
from gateway.tenancy.queries import TENANT_COLUMNS, tenant_of, tenant_record
from gateway.tenancy.records import Tenant
from gateway.tenancy.tables import TenantRow

_BY_NAME = Listing("tenants", (TenantRow.name,))


@dataclass(frozen=True, slots=True)
class NewTenant:
    name: str
    tier: str


@dataclass(frozen=True, slots=True)
class TenantChange:
    tier: str


class Tenants:
    """Handlers."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    async def list_all(self, call: OperationInput) -> Any:
        statement = select(*TENANT_COLUMNS)
        if call.query["tier"] is not None:
            statement = statement.where(TenantRow.tier == call.query["tier"])
        if call.query["suspended"] is not None:
            suspended = TenantRow.disabled_at.is_not(None)
            statement = statement.where(suspended if call.query["suspended"] else ~suspended)
        if call.query["name"] is not None:
            statement = statement.where(TenantRow.name == call.query["name"])
        if call.query["search"] is not None:
            statement = statement.where(TenantRow.name.icontains(call.query["search"], autoescape=True))
        async with self._context.reading() as connection:
            return await _BY_NAME.page(
                connection, statement, call.query, self._context.cursors, lambda row: tenant_wire(tenant_record(row))
            )

    async def read(self, call: OperationInput) -> Any:
        async with self._context.reading() as connection:
            return tenant_wire(await tenant_of(connection, call.path["tenant_id"]))

    async def create(self, change: Change, call: OperationInput) -> Any:
        body: NewTenant = call.body
        tenant = await self._context.tenants(change).create_tenant(body.name, body.tier)
        return _changed(change, "create", None, tenant)

    async def update(self, change: Change, call: OperationInput) -> Any:
        body: TenantChange = call.body
        tenants = self._context.tenants(change)
        before = await tenants.tenant(call.path["tenant_id"])
        return _changed(change, "update", before, await tenants.set_tier(before, body.tier))

    async def suspend(self, change: Change, call: OperationInput) -> Any:
        tenants = self._context.tenants(change)
        before = await tenants.tenant(call.path["tenant_id"])
        return _changed(change, "suspend", before, await tenants.suspend(before))

    async def resume(self, change: Change, call: OperationInput) -> Any:
        tenants = self._context.tenants(change)
        before = await tenants.tenant(call.path["tenant_id"])
        return _changed(change, "resume", before, await tenants.resume(before))


def _changed(change: Change, action: str, before: Tenant | None, after: Tenant) -> dict[str, Any]:
    """Add the audit entry and return the answer."""
    wire = tenant_wire(after)
    earlier = None if before is None else tenant_wire(before)
    change.record(action, "tenant", after.id, tenant_id=after.id, before=earlier, after=wire)
    return wire


def tenant_routes(context: AdminContext) -> list[Route]:
    tenants = Tenants(context)
    tier = Choice(tuple(context.tiers))
    filters = {
        "tier": optional(tier),
        "suspended": optional(Boolean()),
        "name": optional(TENANT_NAME),
        "search": optional(Text(64), "A part of its name, in upper or lower case."),
    }
    one = "/tenants/{tenant_id}"
    return [
        Route(
            name="listTenants",
            about="List tenants by name.",
            method="GET",
            path="/tenants",
            allowed=READERS,
            query={**PAGE_QUERY, **filters},
            answer=page_of("TenantPage", TENANT),
            read=tenants.list_all,
        ),
        Route(
            name="createTenant",
            about="Create a tenant.",
            method="POST",
            path="/tenants",
            allowed=ADMINS,
            body=Record("NewTenant", NewTenant, {"name": Member(TENANT_NAME), "tier": Member(tier)}),
            answer=TENANT,
            status=201,
            write=tenants.create,
        ),
        Route(
            name="readTenant",
            about="Read a tenant.",
            method="GET",
            path=one,
            allowed=READERS,
            answer=TENANT,
            read=tenants.read,
        ),
        Route(
            name="updateTenant",
            about="Serve a tenant in another class. Running gateways follow within 5 seconds.",
            method="PATCH",
            path=one,
            allowed=ADMINS,
            body=Record("TenantChange", TenantChange, {"tier": Member(tier)}),
            answer=TENANT,
            write=tenants.update,
        ),
        Route(
            name="suspendTenant",
            about="Refuse all keys of a tenant, within 5 seconds, until it is resumed.",
            method="POST",
            path=f"{one}/suspend",
            allowed=ADMINS,
            answer=TENANT,
            write=tenants.suspend,
        ),
        Route(
            name="resumeTenant",
            about="Serve a suspended tenant again.",
            method="POST",
            path=f"{one}/resume",
            allowed=ADMINS,
            answer=TENANT,
            write=tenants.resume,
        ),
    ]
