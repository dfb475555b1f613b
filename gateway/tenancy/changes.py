"""Changes of tenants and keys, within the caller's transaction.

Each row is read and locked before it is changed, so the records before and after a change are consistent.
"""

import re
import uuid
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.common.ids import pepper_id
from gateway.tenancy.errors import (
    InvalidExpiry,
    InvalidName,
    KeyNotInUse,
    TenantExists,
    UnknownKey,
    UnknownTenant,
)
from gateway.tenancy.grants import check_models, check_scopes
from gateway.tenancy.keys import new_key
from gateway.tenancy.queries import KEY_COLUMNS, TENANT_COLUMNS, key_record, tenant_record
from gateway.tenancy.records import CreatedKey, KeyRecord, Tenant, Tier
from gateway.tenancy.tables import KeyRow, TenantRow

_TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_KEY_NAME_CHARS = 128
MAX_OVERLAP = timedelta(days=90)
"""Longest time for which both keys of a rotation are valid."""


@dataclass(frozen=True, slots=True)
class KeyGrant:
    """Name and rights of a new key. `scopes`, `models`: None allows all. `expires_at`: None means never."""

    name: str = ""
    scopes: Collection[str] | None = None
    models: Collection[str] | None = None
    expires_at: datetime | None = None


class TenantChanges:
    """Writes on an open connection. The caller commits, or rolls back after an error."""

    def __init__(
        self, connection: AsyncConnection, pepper: bytes, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._connection = connection
        self._pepper = pepper
        self._now = now

    async def create_tenant(self, name: str, tier: Tier) -> Tenant:
        """Create a tenant.

        Raises:
            InvalidName: not 1 to 64 letters, digits and . _ - starting with a letter or digit.
            TenantExists: the name is taken.
        """
        if not _TENANT_NAME.fullmatch(name):
            raise InvalidName("a tenant's name is 1 to 64 letters, digits and . _ -, and starts with a letter or digit")
        tenant = Tenant(str(uuid.uuid4()), name, tier, self._now())
        row = {"id": tenant.id, "name": name, "tier": str(tier), "created_at": tenant.created_at}
        try:
            await self._connection.execute(insert(TenantRow).values(row))
        except IntegrityError:
            raise TenantExists(f"there is a tenant named {name} already") from None
        return tenant

    async def tenant(self, tenant_id: str) -> Tenant:
        """A tenant, locked until the transaction ends.

        Raises:
            UnknownTenant: no such tenant.
        """
        return await self._locked_tenant(TenantRow.id == tenant_id, "there is no such tenant")

    async def tenant_named(self, name: str) -> Tenant:
        """A tenant by name, locked until the transaction ends. Raises UnknownTenant."""
        return await self._locked_tenant(TenantRow.name == name, f"there is no tenant named {name}")

    async def set_tier(self, tenant: Tenant, tier: Tier) -> Tenant:
        """Change the tenant's tier."""
        return await self._change_tenant(replace(tenant, tier=tier))

    async def suspend(self, tenant: Tenant) -> Tenant:
        """Refuse all keys of a tenant from now on. A second suspension keeps the first time."""
        return await self._change_tenant(replace(tenant, disabled_at=tenant.disabled_at or self._now()))

    async def resume(self, tenant: Tenant) -> Tenant:
        """Accept the keys of a suspended tenant again."""
        return await self._change_tenant(replace(tenant, disabled_at=None))

    async def key(self, public_id: str) -> KeyRecord:
        """A key, locked until the transaction ends.

        Raises:
            UnknownKey: no such key.
        """
        query = KEY_COLUMNS.where(KeyRow.public_id == public_id).with_for_update(of=KeyRow.__table__)
        row = (await self._connection.execute(query)).first()
        if row is None:
            raise UnknownKey("there is no key with that public id")
        return key_record(row)

    async def create_key(self, tenant: Tenant, grant: KeyGrant) -> CreatedKey:
        """Create a key. Its plaintext is returned once and not stored.

        Raises:
            InvalidName: the key's name is longer than 128 characters or has unprintable ones.
            InvalidGrant: the scopes or models are not valid.
            InvalidExpiry: the key would have expired already.
        """
        if grant.expires_at is not None and grant.expires_at <= self._now():
            raise InvalidExpiry("a key's expires_at must be in the future")
        return await self._insert_key(tenant.id, tenant.name, grant, lineage=None)

    async def rotate_key(self, old: KeyRecord, old_valid_until: datetime) -> tuple[KeyRecord, CreatedKey]:
        """Create a successor of a key, with the same name, grants and limits. The old key stays valid until
        `old_valid_until`; an instant in the past ends it now. An earlier expiry of the old key stays, and applies to
        the successor too.

        Raises:
            KeyNotInUse: the key is revoked, has expired or has been rotated.
            InvalidExpiry: the overlap is longer than `MAX_OVERLAP`.
        """
        now = self._now()
        if old.revoked_at is not None or old.rotated_to is not None or (old.expires_at and old.expires_at <= now):
            raise KeyNotInUse("only a key in use that has no successor can be rotated")
        if old_valid_until > now + MAX_OVERLAP:
            raise InvalidExpiry(f"the old key may be valid for at most {MAX_OVERLAP.days} days more")
        grant = KeyGrant(old.name, old.scopes, old.models, old.expires_at)
        created = await self._insert_key(old.tenant_id, old.tenant_name, grant, lineage=old.lineage)
        end = max(now, old_valid_until)
        retired = replace(
            old,
            expires_at=end if old.expires_at is None else min(end, old.expires_at),
            rotated_to=created.record.public_id,
        )
        await self._change_key(retired, expires_at=retired.expires_at, rotated_to=retired.rotated_to)
        return retired, created

    async def set_grants(
        self, key: KeyRecord, scopes: Collection[str] | None, models: Collection[str] | None
    ) -> KeyRecord:
        """Replace a key's scopes and models.

        Raises:
            InvalidGrant: the scopes or models are not valid.
        """
        changed = replace(key, scopes=check_scopes(scopes), models=check_models(models))
        await self._change_key(changed, scopes=changed.scopes, models=changed.models)
        return changed

    async def revoke_key(self, key: KeyRecord) -> KeyRecord:
        """Refuse a key from now on, permanently. A second revocation keeps the first time."""
        revoked = replace(key, revoked_at=key.revoked_at or self._now())
        await self._change_key(revoked, revoked_at=revoked.revoked_at)
        return revoked

    async def _locked_tenant(self, condition: Any, otherwise: str) -> Tenant:
        query = select(*TENANT_COLUMNS).where(condition).with_for_update()
        row = (await self._connection.execute(query)).first()
        if row is None:
            raise UnknownTenant(otherwise)
        return tenant_record(row)

    async def _change_tenant(self, tenant: Tenant) -> Tenant:
        values = {"tier": str(tenant.tier), "disabled_at": tenant.disabled_at}
        await self._connection.execute(update(TenantRow).where(TenantRow.id == tenant.id).values(values))
        return tenant

    async def _change_key(self, key: KeyRecord, **values: Any) -> None:
        await self._connection.execute(update(KeyRow).where(KeyRow.public_id == key.public_id).values(values))

    async def _insert_key(self, tenant_id: str, tenant_name: str, grant: KeyGrant, lineage: str | None) -> CreatedKey:
        if len(grant.name) > MAX_KEY_NAME_CHARS or not grant.name.isprintable():
            raise InvalidName(f"a key's name is at most {MAX_KEY_NAME_CHARS} printable characters")
        key = new_key()
        record = KeyRecord(
            key.public_id,
            tenant_name,
            grant.name,
            key.last_four,
            self._now(),
            revoked_at=None,
            expires_at=grant.expires_at,
            rotated_to=None,
            lineage=lineage or key.public_id,
            scopes=check_scopes(grant.scopes),
            models=check_models(grant.models),
            tenant_id=tenant_id,
        )
        row = {"digest": key.digest(self._pepper), "pepper_id": pepper_id(self._pepper), **asdict(record)}
        del row["tenant_name"]
        await self._connection.execute(insert(KeyRow).values(row))
        return CreatedKey(record, key.plaintext)
