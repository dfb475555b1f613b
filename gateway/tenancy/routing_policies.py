"""Tenants' routing policies in the SQL store. Like limits, they are read together with a tenant's keys."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.tenancy.database import answering
from gateway.tenancy.queries import tenant_id_of
from gateway.tenancy.routing_policy import NO_POLICY, Preference, RoutingPolicy
from gateway.tenancy.tables import RoutingPolicyRow


class RoutingPolicyTable:
    """Reads policies for the command line. Every method raises `StoreUnavailable` if the database does not answer, and
    `UnknownTenant` if there is no such tenant."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def policy_of(self, tenant_name: str) -> RoutingPolicy:
        """A tenant's policy, or the default."""
        with answering():
            async with self._database.connect() as connection:
                tenant_id = await tenant_id_of(connection, tenant_name)
                return await read_policy(connection, tenant_id)


async def read_policies(connection: AsyncConnection, tenant_ids: Iterable[str]) -> Mapping[str, RoutingPolicy]:
    """Stated policies, by tenant id."""
    query = select(*_COLUMNS).where(RoutingPolicyRow.tenant_id.in_(tuple(tenant_ids)))
    return {row.tenant_id: _policy(row) for row in (await connection.execute(query)).all()}


async def read_policy(connection: AsyncConnection, tenant_id: str) -> RoutingPolicy:
    """A tenant's policy, or the default."""
    return (await read_policies(connection, [tenant_id])).get(tenant_id, NO_POLICY)


async def write_policy(connection: AsyncConnection, tenant_id: str, policy: RoutingPolicy) -> None:
    """Replace a tenant's policy. The caller holds a lock on the tenant."""
    values = {
        "preference": policy.preference.value,
        "degrade": policy.degrade,
        "degrade_near_budget": policy.degrade_near_budget,
        "cascade_percent": policy.cascade_percent,
        "aliases": dict(policy.aliases),
    }
    here = RoutingPolicyRow.tenant_id == tenant_id
    changed = await connection.execute(update(RoutingPolicyRow).where(here).values(values))
    if not changed.rowcount:
        await connection.execute(insert(RoutingPolicyRow).values(tenant_id=tenant_id, **values))


def _policy(row: Row[*tuple[Any, ...]]) -> RoutingPolicy:
    return RoutingPolicy(
        Preference(row.preference),
        row.degrade,
        row.degrade_near_budget,
        row.cascade_percent,
        MappingProxyType(dict(row.aliases)),
    )


_COLUMNS = tuple(getattr(RoutingPolicyRow, column.name) for column in RoutingPolicyRow.__table__.columns)
