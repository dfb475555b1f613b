"""Tenants and keys in the SQL store. Requests do not read it: `Authenticator` caches it."""

from collections.abc import Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.common.ids import pepper_id
from gateway.tenancy.database import answering
from gateway.tenancy.errors import UnknownTenant
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.limits import limits_of_key, read_limits
from gateway.tenancy.policies import NO_POLICIES, read_policies
from gateway.tenancy.queries import KEY_COLUMNS, TENANT_COLUMNS, key_record, tenant_record
from gateway.tenancy.records import ActiveKey, KeyRecord, Principal, RevokedKey, Tenant
from gateway.tenancy.tables import KeyRow, TenantRow


class TenantStore:
    """Reads tenants and keys; `TenantChanges` writes them. Every method raises `StoreUnavailable` if the database does
    not answer."""

    def __init__(self, database: AsyncEngine, pepper: bytes) -> None:
        self._database = database
        self._pepper_id = pepper_id(pepper)

    async def list_tenants(self) -> tuple[Tenant, ...]:
        """All tenants, by name."""
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(select(*TENANT_COLUMNS).order_by(TenantRow.name))).all()
        return tuple(map(tenant_record, rows))

    async def list_keys(self, tenant_name: str | None = None) -> tuple[KeyRecord, ...]:
        """All keys, or one tenant's, revoked ones included, by tenant and age.

        Raises:
            UnknownTenant: no such tenant.
        """
        query = KEY_COLUMNS.order_by(TenantRow.name, KeyRow.created_at, KeyRow.public_id)
        if tenant_name is not None:
            query = query.where(TenantRow.name == tenant_name)
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(query)).all()
                if not rows and tenant_name is not None:
                    known = await connection.scalar(select(TenantRow.id).where(TenantRow.name == tenant_name))
                    if known is None:
                        raise UnknownTenant(f"there is no tenant named {tenant_name}")
        return tuple(map(key_record, rows))

    async def active_keys(self, public_ids: Sequence[str]) -> Mapping[str, ActiveKey[Principal]]:
        """The keys among `public_ids` that are not revoked, with their limits and policies. Expired keys are included,
        with their expiry, and so are those of suspended tenants, which are marked."""
        query = (
            select(
                KeyRow.public_id,
                KeyRow.digest,
                KeyRow.expires_at,
                KeyRow.lineage,
                KeyRow.scopes,
                KeyRow.models,
                *TENANT_COLUMNS,
            )
            .join(TenantRow, TenantRow.id == KeyRow.tenant_id)
            .where(KeyRow.public_id.in_(public_ids), KeyRow.revoked_at.is_(None))
        )
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(query)).all()
                tenant_ids = {row.id for row in rows}
                stated = await read_limits(connection, tenant_ids)
                policies = await read_policies(connection, tenant_ids)
        return {
            row.public_id: ActiveKey(
                row.digest,
                Principal(
                    row.id,
                    row.name,
                    row.tier,
                    row.public_id,
                    limits_of_key(stated.get(row.id, {}), row.lineage),
                    row.lineage,
                    None if row.scopes is None else frozenset(map(KeyScope, row.scopes)),
                    None if row.models is None else frozenset(row.models),
                    policies=policies.get(row.id, NO_POLICIES),
                ),
                row.expires_at,
                is_suspended=row.disabled_at is not None,
            )
            for row in rows
        }

    async def revoked_keys(self, public_ids: Sequence[str]) -> Mapping[str, RevokedKey[Principal]]:
        """The keys among `public_ids` that are revoked, without limits and policies."""
        query = (
            select(KeyRow.public_id, KeyRow.digest, TenantRow.id, TenantRow.name, TenantRow.tier)
            .join(TenantRow, TenantRow.id == KeyRow.tenant_id)
            .where(KeyRow.public_id.in_(public_ids), KeyRow.revoked_at.is_not(None))
        )
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(query)).all()
        return {
            row.public_id: RevokedKey(row.digest, Principal(row.id, row.name, row.tier, row.public_id)) for row in rows
        }

    async def lineages(self) -> Mapping[str, str]:
        """Of keys that replaced another one: public id to the public id of the first key of the chain."""
        query = select(KeyRow.public_id, KeyRow.lineage).where(KeyRow.lineage != KeyRow.public_id)
        with answering():
            async with self._database.connect() as connection:
                return {row.public_id: row.lineage for row in (await connection.execute(query)).all()}

    async def count_keys_of_other_peppers(self) -> int:
        """Number of active keys that were made under another pepper, so that no client can use them here."""
        query = select(func.count()).where(KeyRow.revoked_at.is_(None), KeyRow.pepper_id != self._pepper_id)
        with answering():
            async with self._database.connect() as connection:
                return await connection.scalar(query) or 0
