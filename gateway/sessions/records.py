"""Write-once values by id, in the session store and within its bounds and expiry."""

import logging
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gateway.sessions.errors import SessionStoreAway
from gateway.sessions.history import pack, unpack
from gateway.sessions.packing import offload_large
from gateway.sessions.store import SessionKey, SessionStore

MAX_RECORD_BYTES = 1024**2
"""Bound of a value before compression, which also bounds the work of a read."""

Release = Callable[[SessionKey, str], Awaitable[None]]

_log = logging.getLogger(__name__)


class Records:
    """Records of one kind. A record lives for `SESSION_TTL_MS` from its write; reads do not extend that.

    Records are stored with the sessions and count towards a tenant's bounds. `kind`: prefix of their ids, with a slash,
    which no session id has. `release`: ends a turn, even on cancellation; None: `store.release`.
    """

    def __init__(self, store: SessionStore, kind: str, release: Release | None = None) -> None:
        self._store = store
        self._kind = kind
        self._release = release or store.release

    async def put(self, tenant_id: str, id: str, data: bytes) -> bool:
        """Store a value under an unused id. False: it is too large, or the store is away."""
        if len(data) > MAX_RECORD_BYTES:
            return False
        key, token = self._key(tenant_id, id), uuid.uuid4().hex
        value = await offload_large(len(data), pack, data)
        try:
            begun = await self._store.begin(key, token)
            return begun is not None and await self._store.store(key, token, value)
        except BaseException as error:
            # `begin` may have succeeded; the record would count towards the tenant's bounds until its lease expires.
            with suppress(SessionStoreAway):
                await self._release(key, token)
            if not isinstance(error, SessionStoreAway):
                raise
            _log.warning("a record is not kept: %s", error)
            return False

    async def get(self, tenant_id: str, id: str) -> bytes | None:
        """The value of an id; None: there is none. Raises SessionStoreAway, UnreadableHistory."""
        stored = await self._store.read(self._key(tenant_id, id))
        return None if stored is None else await offload_large(len(stored.value), unpack, stored.value)

    async def delete(self, tenant_id: str, id: str) -> bool:
        """Delete a value. False: there is none. Raises SessionStoreAway."""
        return await self._store.delete(self._key(tenant_id, id))

    def _key(self, tenant_id: str, id: str) -> SessionKey:
        return SessionKey(tenant_id, f"{self._kind}/{id}")
