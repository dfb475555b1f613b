"""The rows of files. A row is inserted after its content is stored, and deleted before it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, delete, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.files.contents import Contents, NewContent
from gateway.files.errors import FileLimitExceeded, UnknownFile
from gateway.files.records import Purpose, StoredFile
from gateway.files.tables import FileRow
from gateway.tenancy.database import answering, writing
from gateway.tenancy.tables import TenantRow

FILE_COLUMNS = tuple(getattr(FileRow, each.name) for each in fields(StoredFile))


@dataclass(frozen=True, slots=True)
class FileLimits:
    """Limits of a tenant: the number and the bytes of its files together."""

    files: int
    bytes: int


class FileStore:
    """The files of all tenants. Every method raises `StoreUnavailable` if the database does not answer, and, where it
    uses contents, as `Contents`."""

    def __init__(self, database: AsyncEngine, contents: Contents, limits: FileLimits) -> None:
        self._database = database
        self.contents = contents
        self._limits = limits

    async def require_room(self, tenant_id: str, more_bytes: int) -> None:
        """Check that a tenant may have a further file.

        Raises:
            FileLimitExceeded: it would have too many files or bytes.
        """
        with answering():
            async with self._database.connect() as connection:
                await self._require_room(connection, tenant_id, more_bytes)

    async def add(self, file: StoredFile, content: NewContent) -> None:
        """Publish a content that was written, and insert its row.

        Raises:
            FileLimitExceeded: as `require_room`. Nothing is stored.
        """
        await asyncio.to_thread(content.publish, file.tenant_id, file.id)
        try:
            async with writing(self._database) as connection:
                tenant = select(TenantRow.id).where(TenantRow.id == file.tenant_id)
                await connection.execute(tenant.with_for_update())  # so that two uploads do not share the same room
                await self._require_room(connection, file.tenant_id, file.bytes)
                await insert_file(connection, file)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self.contents.delete, file.tenant_id, file.id))
            raise

    async def find(self, tenant_id: str, file_id: str, now: datetime) -> StoredFile:
        """
        Raises:
            UnknownFile: the tenant has no such file, or it has expired.
        """
        query = select(*FILE_COLUMNS).where(FileRow.id == file_id, FileRow.tenant_id == tenant_id, _live(now))
        with answering():
            async with self._database.connect() as connection:
                row = (await connection.execute(query)).first()
        if row is None:
            raise UnknownFile(f"there is no file {file_id[:64]}")
        return _file(row)

    async def page(
        self, tenant_id: str, now: datetime, *, limit: int, after: str | None, purpose: str | None, descending: bool
    ) -> tuple[Sequence[StoredFile], bool]:
        """Files by creation, and whether more follow. `after`: id of the file before the page.

        Raises:
            UnknownFile: there is no file `after`.
        """
        conditions: list[Any] = [FileRow.tenant_id == tenant_id, _live(now)]
        if purpose is not None:
            conditions.append(FileRow.purpose == purpose)
        if after is not None:
            last = await self.find(tenant_id, after, now)
            at, id = FileRow.created_at, FileRow.id
            beyond = (at < last.created_at, id < last.id) if descending else (at > last.created_at, id > last.id)
            conditions.append(or_(beyond[0], and_(at == last.created_at, beyond[1])))
        order = [column.desc() if descending else column.asc() for column in (FileRow.created_at, FileRow.id)]
        query = select(*FILE_COLUMNS).where(*conditions).order_by(*order).limit(limit + 1)
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(query)).all()
        return [_file(row) for row in rows[:limit]], len(rows) > limit

    async def delete(self, tenant_id: str, file_id: str) -> None:
        """
        Raises:
            UnknownFile: the tenant has no such file.
        """
        async with writing(self._database) as connection:
            deleted = await connection.execute(
                delete(FileRow).where(FileRow.id == file_id, FileRow.tenant_id == tenant_id)
            )
        if not deleted.rowcount:
            raise UnknownFile(f"there is no file {file_id[:64]}")
        await asyncio.to_thread(self.contents.delete, tenant_id, file_id)

    async def expired(self, now: datetime, limit: int) -> Sequence[StoredFile]:
        """Files that have expired."""
        query = select(*FILE_COLUMNS).where(FileRow.expires_at <= now).order_by(FileRow.expires_at).limit(limit)
        with answering():
            async with self._database.connect() as connection:
                return [_file(row) for row in (await connection.execute(query)).all()]

    async def known(self, file_ids: Sequence[str]) -> set[str]:
        """Those of the ids that have a row."""
        with answering():
            async with self._database.connect() as connection:
                return set((await connection.scalars(select(FileRow.id).where(FileRow.id.in_(file_ids)))).all())

    async def _require_room(self, connection: AsyncConnection, tenant_id: str, more_bytes: int) -> None:
        query = select(func.count(), func.sum(FileRow.bytes)).where(FileRow.tenant_id == tenant_id)
        count, stored = (await connection.execute(query)).one()
        total = int(stored or 0) + more_bytes  # PostgreSQL sums integers to a decimal number, exactly
        if count >= self._limits.files:
            raise FileLimitExceeded(f"You have {count} files. The maximum is {self._limits.files}: delete some first.")
        if total > self._limits.bytes:
            raise FileLimitExceeded(
                f"Your files would take {total} bytes. The maximum is {self._limits.bytes}: delete some first."
            )


async def insert_file(connection: AsyncConnection, file: StoredFile) -> None:
    """Insert the row of a file whose content is published, in the caller's transaction."""
    await connection.execute(insert(FileRow).values({each.name: getattr(file, each.name) for each in fields(file)}))


def _live(now: datetime) -> Any:
    return or_(FileRow.expires_at.is_(None), FileRow.expires_at > now)


def _file(row: Row[*tuple[Any, ...]]) -> StoredFile:
    return StoredFile(**{**row._mapping, "purpose": Purpose(row.purpose)})
