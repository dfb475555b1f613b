"""Reads of adapters."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Row, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.adapters.errors import UnknownAdapter, UnknownAdapterUpload
from gateway.adapters.records import Adapter, AdapterUpload, AdapterVersion
from gateway.adapters.tables import AdapterRow, AdapterUploadRow, AdapterVersionRow
from gateway.tenancy.database import answering
from gateway.tenancy.tables import TenantRow

KEPT_AFTER_DELETION = timedelta(minutes=10)
"""How long files stay after the deletion of the last version that has them: requests that were admitted before read
them."""
_BATCH = 500
"""Ids in one statement: SQLite binds at most 999 on old builds."""

ADAPTER_COLUMNS = tuple(AdapterRow.__table__.columns)


class AdapterStore:
    """Reads all adapters for `AdapterBook`. Every method raises `StoreUnavailable` if the database does not answer."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def revision(self) -> int:
        """The largest revision: the same as before if nothing has changed."""
        with answering():
            async with self._database.connect() as connection:
                return await last_revision(connection)

    async def adapters(self) -> tuple[Adapter, ...]:
        """All adapters that are not deleted."""
        with answering():
            async with self._database.connect() as connection:
                return await find_adapters(connection)


async def last_revision(connection: AsyncConnection) -> int:
    """The largest revision of any adapter, deleted ones included; 0: there was none."""
    return await connection.scalar(select(func.max(AdapterRow.revision))) or 0


async def find_adapters(connection: AsyncConnection, *conditions: Any) -> tuple[Adapter, ...]:
    """Adapters whose `AdapterRow` meets all conditions, deleted ones excluded, by tenant and name."""
    query = select(*ADAPTER_COLUMNS).where(AdapterRow.deleted_at.is_(None), *conditions)
    rows = (await connection.execute(query.order_by(AdapterRow.tenant_id, AdapterRow.name))).all()
    return await adapters_of(connection, rows)


async def adapters_of(connection: AsyncConnection, rows: Collection[Row[*tuple[Any, ...]]]) -> tuple[Adapter, ...]:
    """The adapters of rows of `ADAPTER_COLUMNS`, in their order."""
    versions = await _versions(connection, [row.id for row in rows])
    return tuple(
        Adapter(
            row.id,
            row.tenant_id,
            row.name,
            row.model,
            row.created_at,
            versions.get(row.id, ()),
            _numbered(row.weights),
            None if row.previous is None else _numbered(row.previous),
            Decimal(row.price_multiplier),
        )
        for row in rows
    )


async def find_adapter(connection: AsyncConnection, tenant_id: str, name: str) -> Adapter | None:
    """A tenant's adapter by its name without prefix; None: there is none."""
    found = await find_adapters(connection, AdapterRow.tenant_id == tenant_id, AdapterRow.name == name)
    return found[0] if found else None


async def adapter_of(connection: AsyncConnection, tenant_id: str, name: str) -> Adapter:
    """As `find_adapter`. Raises UnknownAdapter: there is none."""
    found = await find_adapter(connection, tenant_id, name)
    if found is None:
        raise UnknownAdapter(f"the tenant has no adapter named {name}")
    return found


async def upload_of(connection: AsyncConnection, tenant_id: str, upload_id: str, now: datetime) -> AdapterUpload:
    """Raises: UnknownAdapterUpload."""
    query = select(*AdapterUploadRow.__table__.columns).where(
        AdapterUploadRow.id == upload_id, AdapterUploadRow.tenant_id == tenant_id, AdapterUploadRow.expires_at > now
    )
    row = (await connection.execute(query)).first()
    if row is None:
        raise UnknownAdapterUpload("the tenant has no such upload")
    return AdapterUpload(
        row.id,
        row.tenant_id,
        row.name,
        row.model,
        {name: each["bytes"] for name, each in row.files.items()},
        {name: each["sha256"] for name, each in row.files.items()},
        row.activate,
        row.created_at,
        row.expires_at,
    )


async def kept_digests(connection: AsyncConnection, now: datetime) -> frozenset[str]:
    """Digests whose files are needed: of versions that exist, or were deleted less than `KEPT_AFTER_DELETION` ago."""
    since = now - KEPT_AFTER_DELETION
    query = (
        select(AdapterVersionRow.digest)
        .join(AdapterRow, AdapterRow.id == AdapterVersionRow.adapter_id)
        .where(
            or_(AdapterRow.deleted_at.is_(None), AdapterRow.deleted_at > since),
            or_(AdapterVersionRow.deleted_at.is_(None), AdapterVersionRow.deleted_at > since),
        )
    )
    return frozenset((await connection.scalars(query)).all())


async def open_upload_ids(connection: AsyncConnection, now: datetime) -> frozenset[str]:
    """Ids of the uploads that have not expired."""
    query = select(AdapterUploadRow.id).where(AdapterUploadRow.expires_at > now)
    return frozenset((await connection.scalars(query)).all())


async def tenant_names(connection: AsyncConnection, tenant_ids: Collection[str]) -> Mapping[str, str]:
    """Names of tenants by id."""
    found: dict[str, str] = {}
    ids = sorted(set(tenant_ids))
    for start in range(0, len(ids), _BATCH):
        query = select(TenantRow.id, TenantRow.name).where(TenantRow.id.in_(ids[start : start + _BATCH]))
        found.update({row.id: row.name for row in await connection.execute(query)})
    return found


async def _versions(
    connection: AsyncConnection, adapter_ids: Collection[str]
) -> Mapping[str, tuple[AdapterVersion, ...]]:
    """Versions that exist, by adapter, in the order of their numbers."""
    found: dict[str, list[AdapterVersion]] = {}
    ids = list(adapter_ids)
    for start in range(0, len(ids), _BATCH):
        query = select(*AdapterVersionRow.__table__.columns).where(
            AdapterVersionRow.adapter_id.in_(ids[start : start + _BATCH]), AdapterVersionRow.deleted_at.is_(None)
        )
        for row in await connection.execute(query.order_by(AdapterVersionRow.number)):
            version = AdapterVersion(
                row.number, row.digest, row.rank, tuple(row.targets), row.parameters, row.bytes, row.created_at
            )
            found.setdefault(row.adapter_id, []).append(version)
    return {adapter_id: tuple(versions) for adapter_id, versions in found.items()}


def _numbered(weights: Mapping[str, int]) -> dict[int, int]:
    return {int(number): weight for number, weight in weights.items()}
