"""The end of files: those that have expired, and contents that ended processes left without a row."""

import asyncio
from datetime import datetime
from itertools import islice

from gateway.files.errors import UnknownFile
from gateway.files.store import FileStore

LEFT_S = 24 * 3600.0
"""Age from which a content without a row is removed: no upload takes that long."""
_BATCH = 500
"""Ids in one statement: SQLite binds at most 999 on old builds."""


async def sweep_files(store: FileStore, now: datetime, *, left_s: float = LEFT_S) -> int:
    """Delete expired files, and contents without a row that are at least `left_s` seconds old. Returns their number.

    Raises:
        StoreUnavailable, FileStoreUnavailable: the rest is deleted by the next call.
    """
    removed = 0
    while expired := await store.expired(now, _BATCH):
        for file in expired:
            try:
                await store.delete(file.tenant_id, file.id)
                removed += 1
            except UnknownFile:
                continue  # another gateway was faster
    removed += await asyncio.to_thread(store.contents.sweep, left_s)
    stored = await asyncio.to_thread(lambda: list(store.contents.stored(left_s)))
    left = iter(stored)
    while batch := list(islice(left, _BATCH)):
        known = await store.known([file_id for _, file_id in batch])
        for tenant_id, file_id in batch:
            if file_id not in known:
                await asyncio.to_thread(store.contents.delete, tenant_id, file_id)
                removed += 1
    return removed
