"""Adapters of tenants: their versions, the shares of these, their price, and their end."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import select

from gateway.adapters.changes import AdapterChanges
from gateway.adapters.queries import ADAPTER_COLUMNS, adapter_of, adapters_of, tenant_names
from gateway.adapters.records import Adapter
from gateway.adapters.tables import AdapterRow
from gateway.billing.prices import MAX_MULTIPLIER
from gateway.http.errors import invalid
from gateway.management.operations.adapter_wire import (
    ADAPTER,
    ADAPTER_NAME,
    DELETED,
    MAX_VERSIONS,
    MULTIPLIER,
    VERSION,
    WEIGHT,
    adapter_wire,
)
from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import ADMINS, FINANCE, READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import ListOf, Member, Record, optional
from gateway.management.operations.wire import MODEL_NAME, TENANT_ID
from gateway.tenancy.queries import tenant_of
from gateway.tenancy.records import Tenant

_BY_NAME = Listing("adapters", (AdapterRow.tenant_id, AdapterRow.name))
_ONE = "/tenants/{tenant_id}/adapters/{adapter_name}"

ROUTES = Routes()


@dataclass(frozen=True, slots=True)
class VersionWeight:
    version: int
    weight: int


_NEW_WEIGHT = Record("NewAdapterWeight", VersionWeight, {"version": Member(VERSION), "weight": Member(WEIGHT)})


@ROUTES.get(
    "/adapters",
    READERS,
    page_of("AdapterPage", ADAPTER),
    query={
        **PAGE_QUERY,
        "tenant_id": optional(TENANT_ID),
        "model": optional(MODEL_NAME),
        "name": optional(ADAPTER_NAME),
    },
)
async def list_adapters(context: AdminContext, call: OperationInput) -> Any:
    """List adapters by tenant and name."""
    statement = select(*ADAPTER_COLUMNS).where(AdapterRow.deleted_at.is_(None))
    for name in ("tenant_id", "model", "name"):
        if call.query[name] is not None:
            statement = statement.where(getattr(AdapterRow, name) == call.query[name])
    async with context.reading() as connection:
        page = await _BY_NAME.page(connection, statement, call.query, context.cursors, lambda row: {"row": row})
        rows = [each["row"] for each in page["data"]]
        names = await tenant_names(connection, [row.tenant_id for row in rows])
        found = await adapters_of(connection, rows)
    return page | {"data": [adapter_wire(adapter, names[adapter.tenant_id]) for adapter in found]}


@ROUTES.get(_ONE, READERS, ADAPTER)
async def read_adapter(context: AdminContext, call: OperationInput) -> Any:
    """Read an adapter with its versions."""
    async with context.reading() as connection:
        tenant = await tenant_of(connection, call.path["tenant_id"])
        return adapter_wire(await adapter_of(connection, tenant.id, call.path["adapter_name"]), tenant.name)


@ROUTES.write("DELETE", _ONE, ADMINS, DELETED)
async def delete_adapter(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Delete an adapter with all its versions. Gateways refuse its name within 5 seconds."""
    tenant, adapter = await _locked(context, change, call)
    await AdapterChanges(change.connection, change.at).delete(adapter)
    after = {"id": adapter.id, "name": adapter.name}
    before = adapter_wire(adapter, tenant.name)
    return change.record("delete", "adapter", adapter.id, tenant_id=tenant.id, before=before, after=after)


@ROUTES.write("DELETE", f"{_ONE}/versions/{{adapter_version}}", ADMINS, ADAPTER)
async def delete_adapter_version(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Delete a version that gets no requests."""
    tenant, adapter = await _locked(context, change, call)
    number = int(call.path["adapter_version"])
    after = await AdapterChanges(change.connection, change.at).delete_version(adapter, number)
    return _changed(change, "delete_version", tenant, adapter, after)


@ROUTES.write(
    "PUT",
    f"{_ONE}/weights",
    ADMINS,
    ADAPTER,
    body=Record("NewAdapterWeights", dict, {"weights": Member(ListOf(_NEW_WEIGHT, MAX_VERSIONS, 1))}),
)
async def replace_adapter_weights(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Share an adapter's requests among its versions. A version that is not named gets none. A session or a tenant
    always gets the same version. Gateways apply it within 5 seconds."""
    stated: list[VersionWeight] = call.body["weights"]
    weights = {each.version: each.weight for each in stated}
    if len(weights) < len(stated):
        raise invalid("weights", "weights names a version twice.")
    tenant, adapter = await _locked(context, change, call)
    after = await AdapterChanges(change.connection, change.at).set_weights(adapter, weights)
    return _changed(change, "set_weights", tenant, adapter, after)


@ROUTES.write("POST", f"{_ONE}/rollback", ADMINS, ADAPTER)
async def rollback_adapter(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Return to the weights before the last change. A second rollback undoes the first. Gateways apply it within 5
    seconds."""
    tenant, adapter = await _locked(context, change, call)
    after = await AdapterChanges(change.connection, change.at).rollback(adapter)
    return _changed(change, "rollback", tenant, adapter, after)


@ROUTES.write(
    "PUT",
    f"{_ONE}/price-multiplier",
    FINANCE,
    ADAPTER,
    body=Record("NewPriceMultiplier", dict, {"multiplier": Member(MULTIPLIER, "From 0 to 1000.")}),
)
async def set_adapter_price_multiplier(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Set the multiplier of the base model's price, for requests from then on. Unit prices are rounded down to whole
    nanodollars a token. A price of the adapter's id has priority."""
    multiplier = Decimal(call.body["multiplier"])
    if multiplier > MAX_MULTIPLIER:
        raise invalid("multiplier", f"multiplier must be from 0 to {MAX_MULTIPLIER}.")
    tenant, adapter = await _locked(context, change, call)
    after = await AdapterChanges(change.connection, change.at).set_multiplier(adapter, multiplier.normalize())
    return _changed(change, "set_price_multiplier", tenant, adapter, after)


async def _locked(context: AdminContext, change: Change, call: OperationInput) -> tuple[Tenant, Adapter]:
    """The tenant, locked until the end of the transaction, and its adapter."""
    tenant = await context.tenants(change).tenant(call.path["tenant_id"])
    return tenant, await adapter_of(change.connection, tenant.id, call.path["adapter_name"])


def _changed(change: Change, action: str, tenant: Tenant, before: Adapter, after: Adapter) -> dict[str, Any]:
    told = [adapter_wire(each, tenant.name) for each in (before, after)]
    return change.record(action, "adapter", after.id, tenant_id=tenant.id, before=told[0], after=told[1])
