from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.admission import LimitStore, MemoryStore
from gateway.admission.redis_store import RedisStore
from tests.support.limit_stores import Clock
from tests.support.servers import RedisServer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest, clock: Clock, anyio_backend: str) -> AsyncIterator[LimitStore]:
    """Each of the stores, empty, by a clock that the test moves."""
    if request.param == "memory":
        store = MemoryStore(clock)
        yield store
        store.check()
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        client = Redis.from_url(server.url)
        await client.flushall()
        redis_store = RedisStore(client, clock)
        yield redis_store
        await redis_store.aclose()
