"""Properties of the Redis store alone: its clock, its keys, its restarts."""

import time
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from gateway.admission import Measure, SettleOutcome, StoreAway
from gateway.admission.model import Use
from gateway.admission.redis_store import RedisStore, _source
from gateway.admission.windows import LimitWindow, bucket_at
from tests.support.limit_stores import each, hold, tokens
from tests.support.servers import RedisServer, free_port


@pytest.fixture
async def client(redis_server: RedisServer, anyio_backend: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_server.url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def store(client: Redis) -> RedisStore:
    return RedisStore(client)


async def test_the_clock_is_that_of_redis(store: RedisStore) -> None:
    taken = await hold(store, "a", tokens(100))
    assert abs(taken.at_ms - time.time() * 1000) < 1000


async def test_every_key_of_a_tenant_has_its_hash_tag_and_an_end(store: RedisStore, client: Redis) -> None:
    demands = [tokens(1000, measure=Measure.TOKENS_PER_DAY), each(Measure.CONCURRENT, 3)]
    await hold(store, "a", *demands)
    await store.settle(await hold(store, "b", *demands), Use(1, 5))
    keys = [key.decode() async for key in client.scan_iter()]
    assert len(keys) == 5
    for key in keys:
        assert key.startswith("turnpike:{acme}:")
        assert 0 < await client.pttl(key) <= 40 * 86_400_000


async def test_scripts_survive_that_redis_forgets_them(store: RedisStore, client: Redis) -> None:
    await hold(store, "a", tokens(1000))
    await client.script_flush()
    await hold(store, "b", tokens(1000))


async def test_a_restart_forgets_and_late_use_still_counts(store: RedisStore, client: Redis) -> None:
    taken = await hold(store, "a", tokens(1000))
    await client.flushall()
    assert (await store.settle(taken, Use(1, 70))).outcome is SettleOutcome.UNKNOWN
    assert (await store.usage([tokens(1000).quota]))[0].used == 70


async def test_where_nobody_listens_the_store_is_away() -> None:
    away = RedisStore.open(f"redis://:secret@127.0.0.1:{free_port()}/0")
    with pytest.raises(StoreAway) as error:
        await hold(away, "a", tokens(1000))
    assert "secret" not in str(error.value)
    await away.aclose()


async def test_lua_and_python_agree_on_buckets(client: Redis) -> None:
    """From 1970 to 2199, at the first and last milliseconds of days."""
    script = client.register_script(
        _source("prelude")
        + """
        local reply = {}
        for i = 3, #ARGV do
          for _, window in ipairs({'minute', 'day', 'month', 'ever', 'open'}) do
            table.insert(reply, bucket_at(window, tonumber(ARGV[i])))
          end
        end
        return reply"""
    )
    moments = [day * 86_400_000 + offset for day in range(84_000) for offset in (0, 86_399_999)][::7]
    moments += [day * 86_400_000 - 1 for day in range(1, 84_000, 11)]
    for start in range(0, len(moments), 2000):
        part = moments[start : start + 2000]
        got = await script(keys=[], args=["", 0, *part])
        assert got == [bucket_at(window, at) for at in part for window in LimitWindow]
