"""Session store in Redis, shared by replicas: each call is one Lua script and thus one atomic step.

Redis' clock counts; Redis 7.0 suffices. A session is one hash, `ctx:{tenant}:{session}`. A tenant also has
`ctx-used:{tenant}` and `ctx-bytes:{tenant}`, which keep its bounds (`lua/prelude.lua`). A session that Redis loses, by
a restart or by eviction, starts empty.
"""

import asyncio
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from engine.runtime.responsive_wait import wait_responsively
from gateway.sessions.errors import SessionStoreAway, SessionStoreFull
from gateway.sessions.store import (
    MAX_BYTES_PER_TENANT,
    MAX_SESSIONS_PER_TENANT,
    SESSION_TTL_MS,
    TURN_TTL_MS,
    BegunTurn,
    SessionKey,
    StoredValue,
)

DEADLINE_S = 0.5
"""Deadline of a call in seconds. A history may be hundreds of kilobytes; a slower read counts as failed."""
MAX_CONNECTIONS = 32
RESERVED_SHARE = 0.2
"""Share of Redis' `maxmemory`, if it has one, that sessions leave free for other data, limits above all."""
_SCRIPTS = ("begin", "extend", "store", "release", "read", "delete")


class RedisSessionStore:
    """A `SessionStore` in Redis. No call waits longer than `deadline_s` for its answer; a stall of this process, which
    delays answers that are there, does not count.

    Above `per_tenant` sessions or `bytes_per_tenant`, the tenant's least recently used sessions are evicted. `clock`:
    Unix milliseconds, for tests; None: Redis' TIME.
    """

    def __init__(
        self,
        client: Redis,
        clock: Callable[[], int] | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        per_tenant: int = MAX_SESSIONS_PER_TENANT,
        bytes_per_tenant: int = MAX_BYTES_PER_TENANT,
    ) -> None:
        self._client = client
        self._clock = clock
        self._deadline_s = deadline_s
        self._bounds = (per_tenant, bytes_per_tenant)
        prelude = _source("prelude")
        self._scripts = {name: client.register_script(prelude + _source(name)) for name in _SCRIPTS}

    @classmethod
    def open(cls, url: str) -> "RedisSessionStore":
        """A store at a `redis://`, `rediss://` or `unix://` URL. Connects on first use.

        One retry without delay: a connection that was idle while Redis restarted is found dead on its next use, and all
        scripts are idempotent.
        """
        pool = BlockingConnectionPool.from_url(
            url, max_connections=MAX_CONNECTIONS, timeout=DEADLINE_S, retry=Retry(NoBackoff(), 1)
        )
        return cls(Redis.from_pool(pool))

    async def begin(self, key: SessionKey, token: str) -> BegunTurn | None:
        """As in `SessionStore`."""
        begun, *value = await self._call("begin", key, token, TURN_TTL_MS, SESSION_TTL_MS)
        return BegunTurn(value[0] if value else None) if begun else None

    async def extend(self, key: SessionKey, token: str) -> bool:
        """As in `SessionStore`."""
        return bool(await self._call("extend", key, token, TURN_TTL_MS))

    async def store(self, key: SessionKey, token: str, value: bytes) -> bool:
        """As in `SessionStore`."""
        stored = await self._call(
            "store", key, token, *self._bounds, TURN_TTL_MS, SESSION_TTL_MS, str(RESERVED_SHARE), value
        )
        if stored < 0:
            raise SessionStoreFull("the memory of the store of sessions is full")
        return bool(stored)

    async def release(self, key: SessionKey, token: str) -> None:
        """As in `SessionStore`."""
        await self._call("release", key, token, *self._bounds, TURN_TTL_MS)

    async def read(self, key: SessionKey) -> StoredValue | None:
        """As in `SessionStore`."""
        found = await self._call("read", key)
        return StoredValue(found[1], found[0]) if found else None

    async def delete(self, key: SessionKey) -> bool:
        """As in `SessionStore`."""
        return bool(await self._call("delete", key))

    def counts(self) -> dict[str, int]:
        """As in `SessionStore`: none."""
        return {}

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _call(self, script: str, key: SessionKey, *arguments: str | int | bytes) -> Any:
        now = -1 if self._clock is None else self._clock()
        tenant_id, session_id = key
        keys = [f"ctx:{tenant_id}:{session_id}", f"ctx-used:{tenant_id}", f"ctx-bytes:{tenant_id}"]
        call = asyncio.ensure_future(self._scripts[script](keys=keys, args=[now, session_id, *arguments]))
        try:
            await wait_responsively(call, self._deadline_s)
            if not call.done():
                raise SessionStoreAway("the store of sessions did not answer in time")
            return call.result()
        except (RedisError, OSError) as error:
            # The client's own message is dropped, as it may name hosts and users.
            raise SessionStoreAway(f"the store of sessions does not answer ({type(error).__name__})") from error
        finally:
            call.cancel()


def _source(name: str) -> str:
    return (files("gateway.sessions") / "lua" / f"{name}.lua").read_text(encoding="utf-8")
