"""Properties of the Redis store alone: the key, its TTL by Redis' clock, and a server that is down or slow."""

import asyncio
import contextlib
import time

import pytest
from redis.asyncio import Redis

from gateway.config.settings import Settings
from gateway.process.open_sessions import open_sessions
from gateway.sessions import SessionKey, SessionStoreAway
from gateway.sessions.errors import SessionStoreFull
from gateway.sessions.records import Records
from gateway.sessions.redis_store import RESERVED_SHARE, RedisSessionStore
from gateway.sessions.store import SESSION_TTL_MS, TURN_TTL_MS
from tests.support.servers import RedisServer, free_port

KEY = SessionKey("acme", "trip")


@pytest.fixture
async def client(redis_server: RedisServer, anyio_backend: str):
    async with Redis.from_url(redis_server.url) as client:
        await client.flushall()
        yield client


async def test_redis_lets_go_of_every_key_by_itself(client):
    store = RedisSessionStore(client)
    await store.begin(KEY, "a")
    assert sorted(await client.keys()) == [b"ctx-bytes:acme", b"ctx-used:acme", b"ctx:acme:trip"]
    for key in ("ctx-bytes:acme", "ctx-used:acme"):
        assert SESSION_TTL_MS < await client.pttl(key) <= SESSION_TTL_MS + TURN_TTL_MS
    assert 0 < await client.pttl("ctx:acme:trip") <= TURN_TTL_MS
    await store.store(KEY, "a", b"one")
    assert await client.hget("ctx:acme:trip", "value") == b"one"
    assert TURN_TTL_MS < await client.pttl("ctx:acme:trip") <= SESSION_TTL_MS
    await store.begin(KEY, "b")
    await store.release(KEY, "b")
    assert TURN_TTL_MS < await client.pttl("ctx:acme:trip") <= SESSION_TTL_MS


async def test_a_first_turn_that_is_released_leaves_nothing(client):
    store = RedisSessionStore(client)
    await store.begin(KEY, "a")
    await store.release(KEY, "a")
    assert await client.keys() == []


async def test_a_begin_that_arrives_after_its_release_takes_nothing(client):
    """A cancelled `begin` may still lie in the buffer of its closed connection when `release` comes by another."""
    store = RedisSessionStore(client)
    await store.release(KEY, "cancelled")
    assert await store.begin(KEY, "cancelled") is None
    assert await store.begin(KEY, "next") is not None
    await store.release(KEY, "next")
    [left] = await client.keys()
    assert 0 < await client.pttl(left) <= TURN_TTL_MS


async def test_where_redis_has_little_memory_left_nothing_is_stored_and_nothing_changes(client):
    """Stored sessions, of one tenant or of many, cannot fill the memory that limits are held in."""
    store = RedisSessionStore(client)
    await store.begin(KEY, "a")
    await store.store(KEY, "a", b"before")
    used = (await client.info("memory"))["used_memory"]
    await client.config_set("maxmemory", int((used + 4 * 1024**2) / (1 - RESERVED_SHARE)))
    value = bytes(64 * 1024)
    stored = 0
    try:
        for tenant in range(100):
            key = SessionKey(f"tenant{tenant}", "s")
            await store.begin(key, "a")
            with contextlib.suppress(SessionStoreFull):
                stored += await store.store(key, "a", value)
        assert 10 < stored < 64, "what scripts and buffers take counts, too"
        await store.begin(KEY, "b")
        with pytest.raises(SessionStoreFull):
            await store.store(KEY, "b", value)
        assert (await store.read(KEY)).value == b"before"
        await client.set("limits", bytes(512 * 1024))
    finally:
        await client.config_set("maxmemory", 0)
    assert await store.store(KEY, "b", value)


async def test_a_record_that_finds_no_memory_leaves_nothing(client):
    store = RedisSessionStore(client)
    await client.config_set("maxmemory", (await client.info("memory"))["used_memory"] + 100_000)
    try:
        assert not await Records(store, "note").put("acme", "a", b"x" * 1000)
    finally:
        await client.config_set("maxmemory", 0)
    assert await client.keys() == []


async def test_two_replicas_share_sessions(client, redis_server, no_settings):
    settings = Settings(redis_url=redis_server.url)
    first, second = open_sessions(settings), open_sessions(settings)
    async with first.turn(KEY) as opened:
        await opened.keep(opened.history.with_messages([{"role": "user", "content": "a"}]))
    async with second.turn(KEY) as opened:
        assert opened.history.messages == ({"role": "user", "content": "a"},)
    await first.aclose()
    await second.aclose()


async def test_no_server_is_a_store_that_is_away(anyio_backend):
    store = RedisSessionStore.open(f"redis://127.0.0.1:{free_port()}")
    for action in (store.begin(KEY, "a"), store.store(KEY, "a", b""), store.read(KEY), store.delete(KEY)):
        with pytest.raises(SessionStoreAway):
            await action
    await store.aclose()


class SlowClient:
    """A client whose answers take 10 ms."""

    def register_script(self, source: str):
        async def answer(**_: object):
            await asyncio.sleep(0.01)
            return [1]

        return answer


async def test_a_stall_of_this_process_is_no_outage(anyio_backend):
    store = RedisSessionStore(SlowClient(), deadline_s=0.05)
    beginning = asyncio.create_task(store.begin(KEY, "a"))
    await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251
    assert await beginning is not None


async def test_a_server_that_does_not_answer_is_a_store_that_is_away(anyio_backend):
    hanging = asyncio.Event()

    async def hang(reader, writer):
        await hanging.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = RedisSessionStore(Redis(port=port), deadline_s=0.05)
    with pytest.raises(SessionStoreAway, match="in time"):
        await store.begin(KEY, "a")
    hanging.set()
    with contextlib.suppress(OSError):
        await store.aclose()
    server.close()
    await server.wait_closed()
