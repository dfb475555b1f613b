"""Values that are written once and read by their id: in the store of sessions, with its bounds and its expiry."""

import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gateway.sessions.errors import SessionStoreAway
from gateway.sessions.history import pack, unpack
from gateway.sessions.packing import offload_large
from gateway.sessions.store import SessionKey, SessionStore

MAX_RECORD_BYTES = 1024**2
"""Of one value, before it is compressed. It is a bound on what a read has to unfold and parse, too."""

Release = Callable[[SessionKey, str], Awaitable[None]]

_log = logging.getLogger(__name__)


class Records:
    """The records of one kind. A record lives for `SESSION_TTL_MS` from when it is put; reading does not prolong that.

    They lie beside sessions and count with them against a tenant's bounds. `kind` is in front of their ids, with a
    slash, which no session's id has. `release` ends a turn (default: `store.release`), on cancellation too.
    """

    def __init__(self, store: SessionStore, kind: str, release: Release | None = None) -> None:
        self._store = store
        self._kind = kind
        self._release = release or store.release

    async def put(self, tenant_id: str, id: str, data: bytes) -> bool:
        """Store a value under an id that nothing has. False: it is not stored, as it is too large, or the store is
        away."""
        if len(data) > MAX_RECORD_BYTES:
            return False
        key, token = self._key(tenant_id, id), uuid.uuid4().hex
        value = await offload_large(len(data), pack, data)
        try:
            begun = await self._store.begin(key, token)
            return begun is not None and await self._store.store(key, token, value)
        except BaseException as error:
            # `begin` may have succeeded; until its lease expires the record would count against the tenant's bounds.
            with suppress(SessionStoreAway):
                await self._release(key, token)
            if not isinstance(error, SessionStoreAway):
                raise
            _log.warning("a record is not kept: %s", error)
            return False

    async def get(self, tenant_id: str, id: str) -> bytes | None:
        """Raises: SessionStoreAway, UnreadableHistory."""
        stored = await self._store.read(self._key(tenant_id, id))
        return None if stored is None else await offload_large(len(stored.value), unpack, stored.value)

    async def delete(self, tenant_id: str, id: str) -> bool:
        """False: there is none. Raises: SessionStoreAway."""
        return await self._store.delete(self._key(tenant_id, id))

    def _key(self, tenant_id: str, id: str) -> SessionKey:
        return SessionKey(tenant_id, f"{self._kind}/{id}")
