"""Rows of batches. Every method raises `StoreUnavailable` if the database does not answer."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sqlalchemy import Row, and_, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.batches.errors import BatchConflict, TooManyBatches, UnknownBatch
from gateway.batches.records import EDGES, OPEN, Batch, BatchUsage, Counts, LineError, Status, as_json
from gateway.batches.tables import BatchRow
from gateway.files.records import StoredFile
from gateway.files.store import insert_file
from gateway.files.tables import FileRow
from gateway.tenancy.database import answering, writing
from gateway.tenancy.tables import TenantRow

_COLUMNS = tuple(BatchRow.__table__.columns)
_OPEN = tuple(status.value for status in OPEN)


class BatchStore:
    """The batches of all tenants."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def create(self, batch: Batch, most_open: int) -> None:
        """Insert a batch.

        Raises:
            TooManyBatches: the tenant has `most_open` batches that have not ended.
        """
        async with writing(self._database) as connection:
            tenant = select(TenantRow.id).where(TenantRow.id == batch.tenant_id)
            await connection.execute(tenant.with_for_update())
            count = select(func.count()).where(BatchRow.tenant_id == batch.tenant_id, BatchRow.status.in_(_OPEN))
            if (await connection.scalar(count) or 0) >= most_open:
                raise TooManyBatches(f"You have {most_open} batches that have not ended, which is the maximum.")
            await connection.execute(insert(BatchRow).values(_values(batch)))

    async def find(self, batch_id: str, tenant_id: str | None = None) -> Batch:
        """`tenant_id`: its owner; None: any.

        Raises:
            UnknownBatch: there is no such batch.
        """
        with answering():
            async with self._database.connect() as connection:
                return await _find(connection, batch_id, tenant_id)

    async def page(
        self, *, limit: int, after: str | None = None, tenant_id: str | None = None, statuses: Sequence[str] = ()
    ) -> tuple[Sequence[Batch], bool]:
        """Batches, the newest first, and whether more follow. `after`: id of the batch before the page. `tenant_id`:
        None: of all tenants. `statuses`: empty: in any state.

        Raises:
            UnknownBatch: there is no batch `after`.
        """
        table = BatchRow
        conditions: list[Any] = [] if tenant_id is None else [table.tenant_id == tenant_id]
        if statuses:
            conditions.append(table.status.in_(statuses))
        with answering():
            async with self._database.connect() as connection:
                if after is not None:
                    last = await _find(connection, after, tenant_id)
                    at = table.created_at
                    conditions.append(or_(at < last.created_at, and_(at == last.created_at, table.id < last.id)))
                order = (table.created_at.desc(), table.id.desc())
                query = select(*_COLUMNS).where(*conditions).order_by(*order).limit(limit + 1)
                rows = (await connection.execute(query)).all()
        return [_batch(row) for row in rows[:limit]], len(rows) > limit

    async def is_input(self, tenant_id: str, file_id: str) -> bool:
        """Whether a file is the input of a batch that has not ended."""
        query = select(BatchRow.id).where(
            BatchRow.tenant_id == tenant_id, BatchRow.input_file_id == file_id, BatchRow.status.in_(_OPEN)
        )
        with answering():
            async with self._database.connect() as connection:
                return (await connection.execute(query.limit(1))).first() is not None

    async def cancel(self, batch_id: str, tenant_id: str | None, now: datetime) -> Batch:
        """Begin to cancel a batch. Again: no effect.

        Raises:
            UnknownBatch: there is no such batch.
            BatchConflict: it is being finished, or has ended.
        """
        async with writing(self._database) as connection:
            batch = await _find(connection, batch_id, tenant_id, lock=True)
            if batch.status in (Status.CANCELLING, Status.CANCELLED):
                return batch
            if Status.CANCELLING not in EDGES[batch.status]:
                raise BatchConflict(f"Cannot cancel a batch with status '{batch.status}'.")
            values = {"status": Status.CANCELLING.value, "cancelling_at": now}
            await connection.execute(update(BatchRow).where(BatchRow.id == batch_id).values(values))
            return await _find(connection, batch_id, tenant_id)

    async def enter(
        self, batch: Batch, status: Status, now: datetime, files: Sequence[StoredFile] = (), **values: Any
    ) -> Batch:
        """Change the state of a batch, with `values` of further columns, and insert the rows of its `files`.

        Raises:
            BatchConflict: it is no longer in the state of `batch`.
        """
        assert status in EDGES[batch.status], f"no batch goes from {batch.status} to {status}"
        values |= {"status": status.value, f"{status.value}_at": now}
        async with writing(self._database) as connection:
            changed = await connection.execute(
                update(BatchRow).where(BatchRow.id == batch.id, BatchRow.status == batch.status.value).values(values)
            )
            if changed.rowcount != 1:
                raise BatchConflict(f"{batch.id} is no longer {batch.status}")
            for file in files:
                if await connection.scalar(select(FileRow.id).where(FileRow.id == file.id)) is None:
                    await insert_file(connection, file)
            return await _find(connection, batch.id, None)

    async def fail(self, batch: Batch, errors: Sequence[LineError], now: datetime) -> Batch:
        """As `enter`: the input file is not valid."""
        return await self.enter(batch, Status.FAILED, now, errors=as_json(errors))

    async def count(self, batch_id: str, counts: Counts, usage: BatchUsage) -> None:
        """Record the progress of a batch."""
        values = {"completed": counts.completed, "failed": counts.failed, "usage": asdict(usage)}
        async with writing(self._database) as connection:
            await connection.execute(update(BatchRow).where(BatchRow.id == batch_id).values(values))

    async def claim(self, owner: str, now: datetime, lease_s: float, but: Sequence[str] = ()) -> Batch | None:
        """Lease the oldest batch that has not ended and that no gateway runs; None: there is none. `but`: batches that
        are not considered."""
        free = or_(BatchRow.lease_until.is_(None), BatchRow.lease_until <= now)
        query = select(BatchRow.id).where(BatchRow.status.in_(_OPEN), free, BatchRow.id.not_in(but))
        async with writing(self._database) as connection:
            # Of two gateways on PostgreSQL, each takes another row.
            found = query.order_by(BatchRow.created_at).limit(1).with_for_update(skip_locked=True)
            batch_id = await connection.scalar(found)
            if batch_id is None:
                return None
            values = {"owner": owner, "lease_until": now + timedelta(seconds=lease_s)}
            await connection.execute(update(BatchRow).where(BatchRow.id == batch_id).values(values))
            return await _find(connection, batch_id, None)

    async def renew(self, batch_id: str, owner: str, now: datetime, lease_s: float) -> Batch | None:
        """Prolong a lease. Returns the batch as it is now; None: another gateway has it."""
        async with writing(self._database) as connection:
            renewed = await connection.execute(
                update(BatchRow)
                .where(BatchRow.id == batch_id, BatchRow.owner == owner)
                .values(lease_until=now + timedelta(seconds=lease_s))
            )
            return await _find(connection, batch_id, None) if renewed.rowcount else None

    async def release(self, batch_id: str, owner: str) -> None:
        """End a lease."""
        async with writing(self._database) as connection:
            await connection.execute(
                update(BatchRow)
                .where(BatchRow.id == batch_id, BatchRow.owner == owner)
                .values(owner=None, lease_until=None)
            )

    async def ended(self, batch_ids: Sequence[str]) -> set[str]:
        """Those of the batches that have ended, or that do not exist."""
        query = select(BatchRow.id).where(BatchRow.id.in_(batch_ids), BatchRow.status.in_(_OPEN))
        with answering():
            async with self._database.connect() as connection:
                return set(batch_ids) - set((await connection.scalars(query)).all())

    async def by_status(self) -> Mapping[str, int]:
        """Number of batches that have not ended, by state."""
        query = select(BatchRow.status, func.count()).where(BatchRow.status.in_(_OPEN)).group_by(BatchRow.status)
        with answering():
            async with self._database.connect() as connection:
                return {row[0]: row[1] for row in (await connection.execute(query)).all()}


async def _find(connection: AsyncConnection, batch_id: str, tenant_id: str | None, *, lock: bool = False) -> Batch:
    query = select(*_COLUMNS).where(BatchRow.id == batch_id)
    if tenant_id is not None:
        query = query.where(BatchRow.tenant_id == tenant_id)
    row = (await connection.execute(query.with_for_update() if lock else query)).first()
    if row is None:
        raise UnknownBatch(f"there is no batch {batch_id[:64]}")
    return _batch(row)


def _values(batch: Batch) -> dict[str, Any]:
    return {
        "id": batch.id,
        "tenant_id": batch.tenant_id,
        "key_id": batch.key_id,
        "endpoint": batch.endpoint,
        "completion_window": batch.completion_window,
        "status": batch.status.value,
        "input_file_id": batch.input_file_id,
        "errors": [],
        "labels": None if batch.metadata is None else dict(batch.metadata),
        "output_life_s": batch.output_life_s,
        "total": 0,
        "completed": 0,
        "failed": 0,
        "usage": {},
        "created_at": batch.created_at,
        "expires_at": batch.expires_at,
    }


def _batch(row: Row[*tuple[Any, ...]]) -> Batch:
    # `expires_at` is the end of the window and `expired_at` the state.
    times = {status: at for status in Status if (at := getattr(row, f"{status.value}_at", None)) is not None}
    return Batch(
        id=row.id,
        tenant_id=row.tenant_id,
        key_id=row.key_id,
        endpoint=row.endpoint,
        input_file_id=row.input_file_id,
        status=Status(row.status),
        created_at=row.created_at,
        expires_at=row.expires_at,
        completion_window=row.completion_window,
        model=row.model,
        output_file_id=row.output_file_id,
        error_file_id=row.error_file_id,
        errors=tuple(LineError(**each) for each in row.errors),
        metadata=row.metadata,
        output_life_s=row.output_life_s,
        counts=Counts(row.total, row.completed, row.failed),
        usage=BatchUsage(**row.usage),
        times=MappingProxyType(times),
    )
