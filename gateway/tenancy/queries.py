"""Queries of tenants and keys, and their records from rows."""

from dataclasses import fields
from typing import Any

from sqlalchemy import Row, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.tenancy.errors import UnknownKey, UnknownTenant
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.records import KeyRecord, Tenant
from gateway.tenancy.tables import KeyRow, TenantRow

TENANT_COLUMNS = tuple(getattr(TenantRow, each.name) for each in fields(Tenant))
_KEY_NAMES = [each.name for each in fields(KeyRecord) if each.name != "tenant_name"]
KEY_COLUMNS = select(TenantRow.name.label("tenant_name"), *(getattr(KeyRow, name) for name in _KEY_NAMES)).join(
    TenantRow, TenantRow.id == KeyRow.tenant_id
)


def tenant_record(row: Row[*tuple[Any, ...]]) -> Tenant:
    """The tenant of a row of `TENANT_COLUMNS`."""
    return Tenant(*row)


def key_record(row: Row[*tuple[Any, ...]]) -> KeyRecord:
    """The key of a row of `KEY_COLUMNS`."""
    scopes = None if row.scopes is None else tuple(map(KeyScope, row.scopes))
    models = None if row.models is None else tuple(row.models)
    return KeyRecord(**{**row._mapping, "scopes": scopes, "models": models})


async def key_of(connection: AsyncConnection, public_id: str) -> KeyRecord:
    """The key with this public id.

    Raises:
        UnknownKey: no key has this public id.
    """
    row = (await connection.execute(KEY_COLUMNS.where(KeyRow.public_id == public_id))).first()
    if row is None:
        raise UnknownKey("there is no key with that public id")
    return key_record(row)


async def tenant_of(connection: AsyncConnection, tenant_id: str) -> Tenant:
    """The tenant with this id.

    Raises:
        UnknownTenant: no tenant has this id.
    """
    row = (await connection.execute(select(*TENANT_COLUMNS).where(TenantRow.id == tenant_id))).first()
    if row is None:
        raise UnknownTenant("there is no such tenant")
    return tenant_record(row)


async def require_tenant(connection: AsyncConnection, tenant_id: str) -> None:
    """Check that a tenant exists.

    Raises:
        UnknownTenant: no tenant has this id.
    """
    if await connection.scalar(select(TenantRow.id).where(TenantRow.id == tenant_id)) is None:
        raise UnknownTenant("there is no such tenant")


async def tenant_id_of(connection: AsyncConnection, tenant_name: str, *, lock: bool = False) -> str:
    """The id of the tenant with this name. `lock`: lock the tenant until the transaction ends, which serialises changes
    of its data.

    Raises:
        UnknownTenant: no tenant has this name.
    """
    query = select(TenantRow.id).where(TenantRow.name == tenant_name)
    tenant_id: str | None = await connection.scalar(query.with_for_update() if lock else query)
    if tenant_id is None:
        raise UnknownTenant(f"there is no tenant named {tenant_name}")
    return tenant_id
