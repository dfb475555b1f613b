"""Interface of a session store: `MemorySessionStore` and `RedisSessionStore`."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

SESSION_TTL_MS = 3_600_000
"""Lifetime of a session after a turn on it was last begun or stored, in milliseconds."""
TURN_TTL_MS = 30_000
"""Lifetime of a turn without a heartbeat, in milliseconds."""

MAX_SESSIONS_PER_TENANT = 1_000
MAX_BYTES_PER_TENANT = 64 * 1024**2
"""Bound of one tenant's values, stored responses included, as compressed bytes."""


class SessionKey(NamedTuple):
    """Key of a session. `tenant_id`: tenant of the API key, never chosen by a client; it has no colon."""

    tenant_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """The turn belongs to the caller. `value`: the stored value; None: there is none, or it has expired."""

    value: bytes | None


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A stored value. `expires_in_ms`: remaining lifetime without a turn."""

    value: bytes
    expires_in_ms: int


class SessionStore(Protocol):
    """One value per session and at most one open turn on it, by one clock.

    Invariants. A turn belongs to the token that began it, until it is stored or released, its session is deleted, or
    `TURN_TTL_MS` has passed without `extend`. Only the turn's token stores, so the new value follows directly on the
    one that the turn began with. Every call is idempotent, as a client repeats it if the connection breaks before the
    answer: a repetition changes nothing and returns the same answer.

    A tenant has a bounded number of sessions and of bytes in them. Above a bound, its least recently used sessions
    (begun or stored) are evicted when a turn is stored or released. A session with an open turn or the one just used is
    never evicted.

    Every method raises `SessionStoreAway` if the store does not answer; the call may then have taken place.
    """

    async def begin(self, key: SessionKey, token: str) -> BegunTurn | None:
        """Begin a turn for `TURN_TTL_MS`, and extend the stored value's lifetime to `SESSION_TTL_MS`. None: another
        turn is open."""
        ...

    async def extend(self, key: SessionKey, token: str) -> bool:
        """Keep a turn alive for another `TURN_TTL_MS`. False: it no longer belongs to this token."""
        ...

    async def store(self, key: SessionKey, token: str, value: bytes) -> bool:
        """End a turn with a new value, for `SESSION_TTL_MS`. False: the turn no longer belongs to this token, and
        nothing has changed.

        Raises:
            SessionStoreFull: the store has no memory left.
        """
        ...

    async def release(self, key: SessionKey, token: str) -> None:
        """End a turn if it still belongs to this token, and keep the value. A cancelled `begin` of the token that
        arrives later begins nothing."""
        ...

    async def read(self, key: SessionKey) -> StoredValue | None:
        """The stored value; None: there is none. A read does not extend its lifetime."""
        ...

    async def delete(self, key: SessionKey) -> bool:
        """Delete the session; an open turn on it will not be stored. False: there was neither."""
        ...

    def counts(self) -> dict[str, int]:
        """Counts of the store for metrics."""
        ...

    async def aclose(self) -> None:
        """Close the connections."""
