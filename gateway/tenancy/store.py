"""Tenants and keys in the SQL store. Requests never come here: `Authenticator` reads through a cache."""

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from sqlalchemy import func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy.database import answering
from gateway.tenancy.errors import InvalidName, TenantExists, UnknownKey, UnknownTenant
from gateway.tenancy.keys import new_key
from gateway.tenancy.limits import limits_of_key, read_limits
from gateway.tenancy.pepper import pepper_id
from gateway.tenancy.records import ActiveKey, CreatedKey, KeyRecord, Principal, Tenant, Tier
from gateway.tenancy.tables import KeyRow, TenantRow

_TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_KEY_NAME_CHARS = 128


class TenantStore:
    """Reads and writes tenants and keys. Every method raises `StoreUnavailable` when the database does not
    answer."""

    def __init__(
        self, database: AsyncEngine, pepper: bytes, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._database = database
        self._pepper = pepper
        self._pepper_id = pepper_id(pepper)
        self._now = now

    async def create_tenant(self, name: str, tier: Tier) -> Tenant:
        """
        Raises:
            InvalidName: not 1 to 64 letters, digits and . _ - starting with a letter or digit.
            TenantExists: the name is taken.
        """
        if not _TENANT_NAME.fullmatch(name):
            raise InvalidName("a tenant's name is 1 to 64 letters, digits and . _ -, and starts with a letter or digit")
        tenant = Tenant(str(uuid.uuid4()), name, tier, self._now())
        row = {"id": tenant.id, "name": name, "tier": tier.value, "created_at": tenant.created_at}
        try:
            with answering():
                async with self._database.begin() as connection:
                    await connection.execute(insert(TenantRow).values(row))
        except IntegrityError:
            raise TenantExists(f"there is a tenant named {name} already") from None
        return tenant

    async def list_tenants(self) -> tuple[Tenant, ...]:
        """All of them, by name."""
        query = select(
            TenantRow.id, TenantRow.name, TenantRow.tier, TenantRow.created_at, TenantRow.disabled_at
        ).order_by(TenantRow.name)
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(query)).all()
        return tuple(Tenant(row.id, row.name, Tier(row.tier), row.created_at, row.disabled_at) for row in rows)

    async def create_key(self, tenant_name: str, name: str = "") -> CreatedKey:
        """
        Raises:
            InvalidName: the key's name is longer than 128 characters or has unprintable ones.
            UnknownTenant: no such tenant.
        """
        if len(name) > MAX_KEY_NAME_CHARS or not name.isprintable():
            raise InvalidName(f"a key's name is at most {MAX_KEY_NAME_CHARS} printable characters")
        key = new_key()
        record = KeyRecord(key.public_id, tenant_name, name, key.last_four, self._now())
        with answering():
            async with self._database.begin() as connection:
                query = select(TenantRow.id).where(TenantRow.name == tenant_name)
                tenant_id = await connection.scalar(query)
                if tenant_id is None:
                    raise UnknownTenant(f"there is no tenant named {tenant_name}")
                row = {
                    "public_id": key.public_id,
                    "tenant_id": tenant_id,
                    "name": name,
                    "digest": key.digest(self._pepper),
                    "pepper_id": self._pepper_id,
                    "last_four": key.last_four,
                    "created_at": record.created_at,
                }
                await connection.execute(insert(KeyRow).values(row))
        return CreatedKey(record, key.plaintext)

    async def list_keys(self, tenant_name: str | None = None) -> tuple[KeyRecord, ...]:
        """All keys, or one tenant's, revoked ones too, by tenant and age.

        Raises:
            UnknownTenant: no such tenant.
        """
        query = _KEY_RECORDS.order_by(TenantRow.name, KeyRow.created_at, KeyRow.public_id)
        if tenant_name is not None:
            query = query.where(TenantRow.name == tenant_name)
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(query)).all()
                if not rows and tenant_name is not None:
                    known = await connection.scalar(select(TenantRow.id).where(TenantRow.name == tenant_name))
                    if known is None:
                        raise UnknownTenant(f"there is no tenant named {tenant_name}")
        return tuple(KeyRecord(*row) for row in rows)

    async def revoke_key(self, public_id: str) -> KeyRecord:
        """Refuse a key from now on, for good. Revoking twice keeps the first time.

        Raises:
            UnknownKey: no such key.
        """
        with answering():
            async with self._database.begin() as connection:
                still_valid = (KeyRow.public_id == public_id) & KeyRow.revoked_at.is_(None)
                await connection.execute(update(KeyRow).where(still_valid).values(revoked_at=self._now()))
                row = (await connection.execute(_KEY_RECORDS.where(KeyRow.public_id == public_id))).first()
        if row is None:
            raise UnknownKey("there is no key with that public id")
        return KeyRecord(*row)

    async def active_keys(self, public_ids: Sequence[str]) -> Mapping[str, ActiveKey]:
        """Those of `public_ids` that are neither revoked nor of a disabled tenant, with their limits."""
        query = (
            select(KeyRow.public_id, KeyRow.digest, TenantRow.id, TenantRow.name, TenantRow.tier)
            .join(TenantRow, TenantRow.id == KeyRow.tenant_id)
            .where(KeyRow.public_id.in_(public_ids), KeyRow.revoked_at.is_(None), TenantRow.disabled_at.is_(None))
        )
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(query)).all()
                stated = await read_limits(connection, {row.id for row in rows})
        return {
            public_id: ActiveKey(
                digest,
                Principal(
                    tenant_id, tenant_name, Tier(tier), public_id, limits_of_key(stated.get(tenant_id, {}), public_id)
                ),
            )
            for public_id, digest, tenant_id, tenant_name, tier in rows
        }

    async def count_keys_of_other_peppers(self) -> int:
        """Keys in use that no client can open here, as they were made under another pepper."""
        query = select(func.count()).where(KeyRow.revoked_at.is_(None), KeyRow.pepper_id != self._pepper_id)
        with answering():
            async with self._database.connect() as connection:
                return await connection.scalar(query) or 0


_KEY_RECORDS = select(
    KeyRow.public_id, TenantRow.name, KeyRow.name, KeyRow.last_four, KeyRow.created_at, KeyRow.revoked_at
).join(TenantRow, TenantRow.id == KeyRow.tenant_id)
