"""Cost of admission, in this process and in Redis: `python -m benchmarks.admission`.

Each request holds four scopes (a key's and a tenant's requests and tokens) and settles. Redis is a server of its own on
loopback; a bare PING over the same client is measured in the same run. Then a thousand requests at once against a
quota that is too small for them, and a request's wait while Redis is a black hole.
"""

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable

import uvloop
from redis.asyncio import Redis

from gateway.admission import Demand, Hold, LimitStore, Measure, MemoryStore, Quota, Scope
from gateway.admission.local_share import LocalShare
from gateway.admission.model import HoldRequest, Use
from gateway.admission.redis_store import RedisStore
from gateway.tenancy import ScopeKind
from tests.support.fault_proxy import Fault, fault_proxy
from tests.support.servers import ServerMissing, running_redis

ROUNDS = 2_000
CROWD = 1_000
QUOTA_TOKENS = 50_000
DESIRED_TOKENS = 100
LARGE = 10**12


def demands(limit: int = LARGE, tokens: Measure = Measure.TOKENS_PER_DAY) -> tuple[Demand, ...]:
    return tuple(
        Demand(Quota(Scope("bench", kind, id, measure), limit if counts else LARGE), 10 if counts else 1, int(counts))
        for kind, id in ((ScopeKind.KEY, "key"), (ScopeKind.TENANT, ""))
        for measure, counts in ((Measure.REQUESTS_PER_MINUTE, False), (tokens, True))
    )


async def timed_ms(rounds: int, action: Callable[[int], Awaitable[object]]) -> list[float]:
    took = []
    for n in range(rounds):
        started = time.perf_counter()
        await action(n)
        took.append((time.perf_counter() - started) * 1e3)
    return took


def line(what: str, took_ms: list[float], bar: str = "") -> str:
    p50, p99 = statistics.median(took_ms), statistics.quantiles(took_ms, n=100)[98]
    return f"  {what:34} p50 {p50:6.3f} ms  p99 {p99:6.3f} ms  {bar}".rstrip()


async def hold_and_settle(store: LimitStore, id: str, tokens: Measure = Measure.TOKENS_PER_DAY) -> None:
    hold = await store.hold(HoldRequest(id, demands(tokens=tokens), 1, DESIRED_TOKENS))
    assert isinstance(hold, Hold)
    await store.settle(hold, Use(1, 60, 0))


async def crowd(store: LimitStore) -> str:
    """Requests that end early, and come again while there is something left."""
    chance = random.Random(1)
    asked = demands(QUOTA_TOKENS)
    used = 0

    async def request(n: int) -> None:
        nonlocal used
        for attempt in range(20):
            hold = await store.hold(HoldRequest(f"crowd {n} {attempt}", asked, 1, DESIRED_TOKENS))
            await asyncio.sleep(0)
            if isinstance(hold, Hold):
                part = chance.randint(11, 10 + hold.granted_tokens)
                used += part
                await store.settle(hold, Use(1, part, 0))
            if used > 0.999 * QUOTA_TOKENS:
                return

    started = time.perf_counter()
    await asyncio.gather(*(request(n) for n in range(CROWD)))
    took_s = time.perf_counter() - started
    return (
        f"  {CROWD} at once on {QUOTA_TOKENS} tokens: {used} used, {used / QUOTA_TOKENS:.4f} of it, in {took_s:.2f} s"
    )


async def measure_memory() -> None:
    store = MemoryStore()
    print("in this process:")
    took = await timed_ms(ROUNDS, lambda n: hold_and_settle(store, str(n)))
    print(line("hold + settle, four scopes", took, "(p50 at most 0.3)"))
    print(await crowd(MemoryStore()))


async def measure_redis(url: str, port: int) -> None:
    client = Redis.from_url(url)
    store = RedisStore(client)
    print(f"Redis {(await client.info('server'))['redis_version']} on loopback:")
    await timed_ms(100, lambda n: hold_and_settle(store, f"warm {n}"))
    pings = await timed_ms(ROUNDS, lambda n: client.ping())
    print(line("PING", pings))
    took = await timed_ms(ROUNDS, lambda n: hold_and_settle(store, str(n)))
    print(line("hold + settle, four scopes", took, "(p50 at most 1)"))
    await client.flushall()
    shared = LocalShare(RedisStore(client), 0.2)
    print(await crowd(shared))
    print(f"  of these {shared.counts()['degraded']} on the local share")
    await client.aclose()
    await measure_outage(port)


async def measure_outage(port: int) -> None:
    async with fault_proxy(port) as proxy:
        store = LocalShare(RedisStore.open(f"redis://127.0.0.1:{proxy.port}/0"), 0.2)
        minute = Measure.TOKENS_PER_MINUTE  # days have no local share for the first seconds
        await hold_and_settle(store, "before", minute)
        await proxy.set(Fault.BLACK_HOLE)
        took = await timed_ms(ROUNDS, lambda n: hold_and_settle(store, f"outage {n}", minute))
        print("Redis a black hole:")
        waited = [ms for ms in took if ms > 5]
        print(f"  {len(waited)} requests waited for Redis, {sum(waited):.0f} ms in all")
        print(line("hold + settle after that", took[len(waited) :], "(p99 at most 5)"))
        await store.aclose()


def main() -> None:
    uvloop.run(measure_memory())
    try:
        with running_redis() as server:
            uvloop.run(measure_redis(server.url, server.port))
    except ServerMissing as missing:
        print(missing)


if __name__ == "__main__":
    main()
