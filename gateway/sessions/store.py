"""What a store of sessions can do: `MemorySessionStore` and `RedisSessionStore`."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

SESSION_TTL_MS = 3_600_000
"""How long a session is kept after a turn on it was last begun or stored."""
TURN_TTL_MS = 30_000
"""How long a turn keeps others out without a sign of life from whoever runs it."""

MAX_SESSIONS_PER_TENANT = 1_000
MAX_BYTES_PER_TENANT = 64 * 1024**2
"""Of the values of one tenant, stored responses among them, as they are stored: compressed."""


class SessionKey(NamedTuple):
    """Whose session. `tenant_id` is that of the API key that asks, never what a client wrote; it has no colon."""

    tenant_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class BegunTurn:
    """The turn is the caller's. `value` is what was stored last; None: nothing, or its time is over."""

    value: bytes | None


@dataclass(frozen=True, slots=True)
class StoredValue:
    """`expires_in_ms` without a turn."""

    value: bytes
    expires_in_ms: int


class SessionStore(Protocol):
    """A value for each session, and at most one turn on it, by one clock.

    Invariants. A turn belongs to the token that began it, until it is stored, released, deleted from under it, or
    `TURN_TTL_MS` has passed without `extend`. Only a turn's own token stores, so what a turn stores comes after what it
    was begun with, and nothing came between. What took place can be repeated, as a client does whose connection broke
    before the answer: nothing changes, and a turn gets the same answer again.

    A tenant has a bounded number of sessions, and of bytes in them. Over one, its least recently used (begun or stored)
    go when a turn is stored or released; none of them is one with a turn under way, nor the one just used.

    Every method raises `SessionStoreAway` where the store does not answer; then it may have taken place.
    """

    async def begin(self, key: SessionKey, token: str) -> BegunTurn | None:
        """Begin a turn, for `TURN_TTL_MS`; what is stored lives from now on for `SESSION_TTL_MS`. None: another turn
        is under way."""
        ...

    async def extend(self, key: SessionKey, token: str) -> bool:
        """Keep a turn for another `TURN_TTL_MS`. False: it is not this token's any more."""
        ...

    async def store(self, key: SessionKey, token: str, value: bytes) -> bool:
        """End a turn with a new value, for `SESSION_TTL_MS`. False: the turn is not this token's any more, and nothing
        has changed.

        Raises: SessionStoreFull.
        """
        ...

    async def release(self, key: SessionKey, token: str) -> None:
        """End a turn, if it is still this token's, and leave the value as it was. A `begin` of the token that was
        cancelled and takes place later begins nothing."""
        ...

    async def read(self, key: SessionKey) -> StoredValue | None:
        """What is stored. Looking at it does not prolong its life."""
        ...

    async def delete(self, key: SessionKey) -> bool:
        """Forget the session, and the turn that may be under way: it will not be stored. False: there was neither."""
        ...

    def counts(self) -> dict[str, int]:
        """For metrics: what the store has to say of itself."""
        ...

    async def aclose(self) -> None: ...
