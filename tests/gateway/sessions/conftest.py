from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.sessions import SessionStore
from gateway.sessions.memory import MemorySessionStore
from gateway.sessions.redis_store import RedisSessionStore
from tests.gateway.sessions.bounds import SMALL
from tests.support.limit_stores import Clock
from tests.support.servers import RedisServer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest, clock: Clock, anyio_backend: str) -> AsyncIterator[SessionStore]:
    """Each of the stores, empty, by a clock that the test moves."""
    async for store in opened(request, clock):
        yield store


@pytest.fixture(params=["memory", "redis"])
async def small_store(request: pytest.FixtureRequest, clock: Clock, anyio_backend: str) -> AsyncIterator[SessionStore]:
    """As `store`, with the bounds of `SMALL` for a tenant."""
    async for store in opened(request, clock, **SMALL):
        yield store


async def opened(request: pytest.FixtureRequest, clock: Clock, **bounds: int) -> AsyncIterator[SessionStore]:
    if request.param == "memory":
        store = MemorySessionStore(clock, **bounds)
        yield store
        store.check()
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        client = Redis.from_url(server.url)
        await client.flushall()
        redis_store = RedisSessionStore(client, clock, deadline_s=5, **bounds)
        yield redis_store
        await redis_store.aclose()
