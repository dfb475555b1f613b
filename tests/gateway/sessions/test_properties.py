"""Under any sequence of events both stores do the same, and no turn is lost or interleaved."""

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.sessions import SessionKey, SessionStore
from gateway.sessions.memory import MemorySessionStore
from gateway.sessions.redis_store import RedisSessionStore
from gateway.sessions.store import SESSION_TTL_MS, TURN_TTL_MS
from tests.gateway.sessions.bounds import SMALL
from tests.support.limit_stores import Clock
from tests.support.servers import RedisServer

KEYS = (SessionKey("acme", "a"), SessionKey("globex", "a"))
MANY_KEYS = (*(SessionKey("acme", each) for each in "abcde"), *(SessionKey("globex", each) for each in "ab"))
# Mostly whole turns on one session, so that there is something to disturb.
keys = st.sampled_from([KEYS[0], *KEYS])
many_keys = st.sampled_from(MANY_KEYS)
whole_turns = st.tuples(st.just("turn"), many_keys, st.integers(0, 60))
tokens = st.sampled_from(["1", "1", "2"])
waits = st.sampled_from([1, TURN_TTL_MS - 1, TURN_TTL_MS, SESSION_TTL_MS - 1, SESSION_TTL_MS, SESSION_TTL_MS + 1])
turns = st.tuples(st.sampled_from(["begin", "store", "begin", "store", "extend", "release"]), keys, tokens)
moves = turns | turns | turns | st.tuples(st.just("delete"), keys) | st.tuples(st.just("wait"), waits)


@pytest.fixture(scope="module")
def runner(redis_server: RedisServer) -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def released_once(steps: list[tuple]) -> Iterator[tuple]:
    """The same steps; what follows a token's release has another token, as in the program."""
    releases: Counter[tuple] = Counter()
    for step in steps:
        if step[0] in ("begin", "store", "extend", "release"):
            verb, key, token = step
            yield verb, key, f"{token} {key.tenant_id} {key.session_id} {releases[key, token]}"
            releases[key, token] += verb == "release"
        else:
            yield step


async def apply(store: SessionStore, step: tuple, number: int) -> object:
    match step:
        case ("begin", key, token):
            return await store.begin(key, token)
        case ("extend", key, token):
            return await store.extend(key, token)
        case ("store", key, token):
            return await store.store(key, token, f"{number}".encode())
        case ("release", key, token):
            return await store.release(key, token)
        case ("delete", key):
            return await store.delete(key)
    raise AssertionError(step)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(moves, min_size=10, max_size=50))
def test_both_stores_do_the_same(runner: asyncio.Runner, redis_server: RedisServer, steps: list[tuple]) -> None:
    """Step by step the same answers, and the same sessions after each."""

    async def run() -> None:
        clock = Clock()
        async with Redis.from_url(redis_server.url) as client:
            await client.flushall()
            memory, redis = MemorySessionStore(clock), RedisSessionStore(client, clock, deadline_s=5)
            for number, step in enumerate(released_once(steps)):
                if step[0] == "wait":
                    clock.now_ms += step[1]
                    continue
                assert await apply(memory, step, number) == await apply(redis, step, number), step
                for key in KEYS:
                    assert await memory.read(key) == await redis.read(key)
                memory.check()

    runner.run(run())


many_moves = (
    whole_turns
    | whole_turns
    | st.tuples(st.sampled_from(["begin", "release"]), many_keys, tokens)
    | st.tuples(st.just("delete"), many_keys)
    | st.tuples(st.just("wait"), waits)
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(many_moves, min_size=10, max_size=50))
def test_both_stores_bound_tenants_alike(runner: asyncio.Runner, redis_server: RedisServer, steps: list[tuple]) -> None:
    """The same sessions make room for others; and what Redis counts is what it holds."""

    async def run() -> None:
        clock = Clock()
        async with Redis.from_url(redis_server.url) as client:
            await client.flushall()
            memory = MemorySessionStore(clock, **SMALL)
            redis = RedisSessionStore(client, clock, deadline_s=5, **SMALL)
            for number, step in enumerate(released_once(steps)):
                match step:
                    case ("wait", ms):
                        clock.now_ms += ms
                    case ("turn", key, size):
                        for store in (memory, redis):
                            if await store.begin(key, f"{number}") is not None:
                                assert await store.store(key, f"{number}", bytes(size))
                    case _:
                        assert await apply(memory, step, number) == await apply(redis, step, number), step
                for key in MANY_KEYS:
                    assert await memory.read(key) == await redis.read(key), key
                memory.check()
                await check_counts(client, clock)

    runner.run(run())


async def check_counts(client: Redis, clock: Clock) -> None:
    for tenant in ("acme", "globex"):
        sizes = await client.hgetall(f"ctx-bytes:{tenant}")
        total = int(sizes.pop(b"", 0))
        assert set(sizes) == set(await client.zrange(f"ctx-used:{tenant}", 0, -1))
        assert total == sum(map(int, sizes.values()))
        for key in await client.keys(f"ctx:{tenant}:*"):
            assert int(sizes[key.rpartition(b":")[2]]) == await client.hstrlen(key, "value")


@settings(max_examples=300)
@given(steps=st.lists(moves, min_size=10, max_size=60))
def test_no_turn_is_lost_or_interleaved(steps: list[tuple]) -> None:
    """Each turn writes what it began with and one entry more: a history is the turns that were stored, in order."""

    async def run() -> None:
        clock = Clock()
        store = MemorySessionStore(clock)
        # By who runs it: a token is one turn's, so a second turn has another one.
        under_way: dict[tuple[SessionKey, str], tuple[str, bytes]] = {}
        history: dict[SessionKey, bytes] = {}
        for number, step in enumerate(steps):
            match step:
                case ("wait", ms):
                    clock.now_ms += ms
                case ("begin", key, runner) if (key, runner) not in under_way:
                    token = f"{runner} at {number}"
                    if (begun := await store.begin(key, token)) is not None:
                        assert begun.value in (history.get(key), None)
                        under_way[key, runner] = token, begun.value or b""
                case ("store", key, runner) if (key, runner) in under_way:
                    token, before = under_way[key, runner]
                    entry = before + f"{number},".encode()
                    stored = await store.read(key)
                    if await store.store(key, token, entry):
                        assert (stored.value if stored else b"") in (before, b"")
                        history[key] = entry
                        del under_way[key, runner]
                case ("release", key, runner) if (key, runner) in under_way:
                    await store.release(key, under_way.pop((key, runner))[0])
                case ("delete", key):
                    await store.delete(key)
                    history.pop(key, None)
            for key in KEYS:
                found = await store.read(key)
                assert found is None or found.value == history[key]

    asyncio.run(run())
