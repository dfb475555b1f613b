"""Tenants: who is served, and in which class."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import ADMINS, READERS
from gateway.management.operations.routes import OperationInput, Routes
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


ROUTES = Routes()
_FILTERS = {
    "suspended": optional(Boolean()),
    "name": optional(TENANT_NAME),
    "search": optional(Text(64), "Part of its name, case-insensitive."),
}
_ONE = "/tenants/{tenant_id}"


def _tier(context: AdminContext) -> Choice:
    return Choice(tuple(context.tiers))


@ROUTES.get(
    "/tenants",
    READERS,
    page_of("TenantPage", TENANT),
    query=lambda context: {**PAGE_QUERY, "tier": optional(_tier(context)), **_FILTERS},
)
async def list_tenants(context: AdminContext, call: OperationInput) -> Any:
    """List tenants by name."""
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
    async with context.reading() as connection:
        return await _BY_NAME.page(
            connection, statement, call.query, context.cursors, lambda row: tenant_wire(tenant_record(row))
        )


@ROUTES.get(_ONE, READERS, TENANT)
async def read_tenant(context: AdminContext, call: OperationInput) -> Any:
    """Read a tenant."""
    async with context.reading() as connection:
        return tenant_wire(await tenant_of(connection, call.path["tenant_id"]))


@ROUTES.write(
    "POST",
    "/tenants",
    ADMINS,
    TENANT,
    body=lambda context: Record("NewTenant", NewTenant, {"name": Member(TENANT_NAME), "tier": Member(_tier(context))}),
    status=201,
)
async def create_tenant(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Create a tenant."""
    body: NewTenant = call.body
    tenant = await context.tenants(change).create_tenant(body.name, body.tier)
    return _changed(change, "create", None, tenant)


@ROUTES.write(
    "PATCH",
    _ONE,
    ADMINS,
    TENANT,
    body=lambda context: Record("TenantChange", dict, {"tier": Member(_tier(context))}),
)
async def update_tenant(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Change the service class of a tenant. Running gateways apply it within 5 seconds."""
    tenants = context.tenants(change)
    before = await tenants.tenant(call.path["tenant_id"])
    return _changed(change, "update", before, await tenants.set_tier(before, call.body["tier"]))


@ROUTES.write("POST", f"{_ONE}/suspend", ADMINS, TENANT)
async def suspend_tenant(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Suspend a tenant. Its keys are rejected within 5 seconds, until it is resumed."""
    tenants = context.tenants(change)
    before = await tenants.tenant(call.path["tenant_id"])
    return _changed(change, "suspend", before, await tenants.suspend(before))


@ROUTES.write("POST", f"{_ONE}/resume", ADMINS, TENANT)
async def resume_tenant(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Resume a suspended tenant."""
    tenants = context.tenants(change)
    before = await tenants.tenant(call.path["tenant_id"])
    return _changed(change, "resume", before, await tenants.resume(before))


def _changed(change: Change, action: str, before: Tenant | None, after: Tenant) -> dict[str, Any]:
    """Add the audit entry and return the answer."""
    earlier = None if before is None else tenant_wire(before)
    return change.record(action, "tenant", after.id, tenant_id=after.id, before=earlier, after=tenant_wire(after))
