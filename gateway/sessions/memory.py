"""Session store in this process."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gateway.sessions.store import (
    MAX_BYTES_PER_TENANT,
    MAX_SESSIONS_PER_TENANT,
    SESSION_TTL_MS,
    TURN_TTL_MS,
    BegunTurn,
    SessionKey,
    StoredValue,
)

MAX_TOTAL_BYTES = 256 * 1024**2


@dataclass(slots=True)
class _Session:
    """`value` is valid before `expires_ms`; `writer`: the token that stored it. The turn belongs to `owner` before
    `owned_until_ms`."""

    value: bytes | None = None
    writer: str = ""
    expires_ms: int = 0
    owner: str = ""
    owned_until_ms: int = 0

    def lives(self, now_ms: int) -> bool:
        return self.value is not None and now_ms < self.expires_ms

    def owned(self, now_ms: int) -> bool:
        return bool(self.owner) and now_ms < self.owned_until_ms

    def owned_by(self, token: str, now_ms: int) -> bool:
        return self.owner == token and self.owned(now_ms)

    @property
    def size(self) -> int:
        return len(self.value or b"")


class MemorySessionStore:
    """A `SessionStore` in memory, for one event loop.

    Above `per_tenant` sessions or `bytes_per_tenant`, the tenant's least recently used session is evicted; above
    `total_bytes`, that of the largest tenant. A session with an open turn or the one just used is never evicted.
    `clock`: Unix milliseconds.
    """

    def __init__(
        self,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        per_tenant: int = MAX_SESSIONS_PER_TENANT,
        bytes_per_tenant: int = MAX_BYTES_PER_TENANT,
        total_bytes: int = MAX_TOTAL_BYTES,
    ) -> None:
        self._clock = clock
        self._per_tenant = per_tenant
        self._bytes_per_tenant = bytes_per_tenant
        self._total_bytes = total_bytes
        # Both least recently used first. All sessions live equally long, so the first are the first to expire.
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._of_tenant: dict[str, OrderedDict[SessionKey, None]] = {}
        self._bytes_of: Counter[str] = Counter()
        self._evicted = 0

    async def begin(self, key: SessionKey, token: str) -> BegunTurn | None:
        """As in `SessionStore`."""
        now_ms = self._clock()
        self._purge(now_ms)
        session = self._sessions.get(key, _Session())
        if session.owned(now_ms) and session.owner != token:
            return None
        if session.lives(now_ms):
            session.expires_ms = now_ms + SESSION_TTL_MS
        else:
            self._put(key, session, None)
        session.owner, session.owned_until_ms = token, now_ms + TURN_TTL_MS
        self._use(key, session)
        return BegunTurn(session.value)

    async def extend(self, key: SessionKey, token: str) -> bool:
        """As in `SessionStore`."""
        now_ms = self._clock()
        session = self._sessions.get(key)
        if session is None or not session.owned_by(token, now_ms):
            return False
        session.owned_until_ms = now_ms + TURN_TTL_MS
        return True

    async def store(self, key: SessionKey, token: str, value: bytes) -> bool:
        """As in `SessionStore`."""
        now_ms = self._clock()
        session = self._sessions.get(key)
        if session is None or not session.owned_by(token, now_ms):
            return session is not None and session.writer == token and session.lives(now_ms)
        self._put(key, session, value)
        session.writer, session.expires_ms = token, now_ms + SESSION_TTL_MS
        session.owner = ""
        self._use(key, session)
        self._make_room(key, now_ms)
        return True

    async def release(self, key: SessionKey, token: str) -> None:
        """As in `SessionStore`."""
        session = self._sessions.get(key)
        if session is not None and session.owner == token:
            session.owner = ""
            if session.value is None:
                self._remove(key)
            else:
                self._make_room(key, self._clock())

    async def read(self, key: SessionKey) -> StoredValue | None:
        """As in `SessionStore`."""
        now_ms = self._clock()
        session = self._sessions.get(key)
        if session is None or session.value is None or not session.lives(now_ms):
            return None
        return StoredValue(session.value, session.expires_ms - now_ms)

    async def delete(self, key: SessionKey) -> bool:
        """As in `SessionStore`."""
        now_ms = self._clock()
        session = self._sessions.get(key)
        if session is None:
            return False
        there = session.lives(now_ms) or session.owned(now_ms)
        self._remove(key)
        return there

    def counts(self) -> dict[str, int]:
        """As in `SessionStore`: `sessions`, `bytes` and `evicted`."""
        return {"sessions": len(self._sessions), "bytes": self._bytes_of.total(), "evicted": self._evicted}

    async def aclose(self) -> None:
        """As in `SessionStore`: there is nothing to close."""

    def check(self) -> None:
        """Assert the bounds and the sums that every method keeps."""
        by_tenant: dict[str, list[SessionKey]] = {}
        for key in self._sessions:
            by_tenant.setdefault(key.tenant_id, []).append(key)
        assert by_tenant == {tenant: list(keys) for tenant, keys in self._of_tenant.items()}
        for tenant, keys in by_tenant.items():
            assert self._bytes_of[tenant] == sum(self._sessions[key].size for key in keys)
            assert sum(not self._sessions[key].owner for key in keys) <= self._per_tenant
            idle = [self._sessions[key].size for key in keys if not self._sessions[key].owner]
            assert sum(idle) <= max(self._bytes_per_tenant, max(idle, default=0))

    def _use(self, key: SessionKey, session: _Session) -> None:
        self._sessions[key] = session
        self._sessions.move_to_end(key)
        own = self._of_tenant.setdefault(key.tenant_id, OrderedDict())
        own[key] = None
        own.move_to_end(key)

    def _put(self, key: SessionKey, session: _Session, value: bytes | None) -> None:
        self._bytes_of[key.tenant_id] += len(value or b"") - session.size
        session.value = value

    def _remove(self, key: SessionKey) -> None:
        self._put(key, self._sessions.pop(key), None)
        own = self._of_tenant[key.tenant_id]
        del own[key]
        if not own:
            del self._of_tenant[key.tenant_id], self._bytes_of[key.tenant_id]

    def _purge(self, now_ms: int) -> None:
        """Remove expired sessions, oldest first."""
        while self._sessions:
            key, session = next(iter(self._sessions.items()))
            if session.lives(now_ms) or session.owned(now_ms):
                return
            self._remove(key)

    def _make_room(self, new: SessionKey, now_ms: int) -> None:
        while self._is_over(new.tenant_id) and self._evict_of(new.tenant_id, new, now_ms):
            pass
        while self._bytes_of.total() > self._total_bytes:
            if not self._evict_of(self._bytes_of.most_common(1)[0][0], new, now_ms):
                return

    def _is_over(self, tenant_id: str) -> bool:
        return len(self._of_tenant[tenant_id]) > self._per_tenant or self._bytes_of[tenant_id] > self._bytes_per_tenant

    def _evict_of(self, tenant_id: str, new: SessionKey, now_ms: int) -> bool:
        """Evict the tenant's least recently used session without an open turn. False: there is none."""
        for key in self._of_tenant[tenant_id]:
            if key != new and not self._sessions[key].owned(now_ms):
                self._remove(key)
                self._evicted += 1
                return True
        return False
