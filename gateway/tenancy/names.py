"""Names of tenants, tenants' keys and administrators' keys by their ids, for pages and lists that hold ids."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.tenancy.tables import AdminKeyRow, KeyRow, TenantRow

_BATCH = 500
"""Ids in one statement: SQLite binds at most 999 on old builds."""


@dataclass(frozen=True, slots=True)
class KeyLabel:
    """`name` may be empty."""

    id: str
    name: str
    last_four: str
    tenant_id: str
    is_revoked: bool

    @property
    def text(self) -> str:
        """The name with the end of the secret; the id of a key without a name."""
        return f"{self.name or self.id} …{self.last_four}"


async def names_of_tenants(connection: AsyncConnection, ids: Collection[str]) -> dict[str, str]:
    """The names of those that exist."""
    found: dict[str, str] = {}
    for some in _batches(ids):
        query = select(TenantRow.id, TenantRow.name).where(TenantRow.id.in_(some))
        found.update({row.id: row.name for row in await connection.execute(query)})
    return found


async def labels_of_keys(
    connection: AsyncConnection, ids: Collection[str], tenant_id: str | None = None
) -> dict[str, KeyLabel]:
    """The labels of those that exist. `tenant_id`: only this tenant's."""
    found: dict[str, KeyLabel] = {}
    for some in _batches(ids):
        query = _KEYS.where(KeyRow.public_id.in_(some))
        if tenant_id is not None:
            query = query.where(KeyRow.tenant_id == tenant_id)
        found.update({label.id: label for label in await _labels(connection, query)})
    return found


async def names_of_administrators(connection: AsyncConnection, ids: Collection[str]) -> dict[str, str]:
    """The names of administrators' keys that exist."""
    found: dict[str, str] = {}
    for some in _batches(ids):
        query = select(AdminKeyRow.public_id, AdminKeyRow.name).where(AdminKeyRow.public_id.in_(some))
        found.update({row.public_id: row.name for row in await connection.execute(query)})
    return found


async def first_tenants(connection: AsyncConnection, limit: int) -> Mapping[str, str]:
    """The first tenants by name: their names by id, in order."""
    query = select(TenantRow.id, TenantRow.name).order_by(TenantRow.name).limit(limit)
    return {row.id: row.name for row in await connection.execute(query)}


async def first_keys(connection: AsyncConnection, tenant_id: str | None, limit: int) -> list[KeyLabel]:
    """The first keys by tenant and age, revoked ones last. `tenant_id`: only this tenant's."""
    query = _KEYS.order_by(KeyRow.revoked_at.is_not(None), TenantRow.name, KeyRow.created_at, KeyRow.public_id).limit(
        limit
    )
    if tenant_id is not None:
        query = query.where(KeyRow.tenant_id == tenant_id)
    return await _labels(connection, query)


async def tenant_id_of(connection: AsyncConnection, name: str) -> str | None:
    """The id of the tenant with a name."""
    found: str | None = await connection.scalar(select(TenantRow.id).where(TenantRow.name == name))
    return found


_KEYS = select(KeyRow.public_id, KeyRow.name, KeyRow.last_four, KeyRow.tenant_id, KeyRow.revoked_at).join(
    TenantRow, TenantRow.id == KeyRow.tenant_id
)


async def _labels(connection: AsyncConnection, query: Select[str, str, str, str, datetime | None]) -> list[KeyLabel]:
    return [
        KeyLabel(row.public_id, row.name, row.last_four, row.tenant_id, row.revoked_at is not None)
        for row in await connection.execute(query)
    ]


def _batches(ids: Iterable[str]) -> Iterator[list[str]]:
    left = iter(sorted(set(ids)))
    while some := list(islice(left, _BATCH)):
        yield some
