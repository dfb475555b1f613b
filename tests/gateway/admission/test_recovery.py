"""Redis that has lost its data: each replica records again what it had there, once."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from gateway.admission import Measure, SettleOutcome
from gateway.admission.model import Committed, Demand, Hold, Use
from gateway.admission.redis_store import RedisStore
from tests.support.limit_stores import Clock, each, hold, refusal, scope, tokens
from tests.support.servers import RedisServer

CREDIT = tokens(1000, measure=Measure.CREDIT_NANODOLLARS)
MONTH = tokens(1000, measure=Measure.NANODOLLARS_PER_MONTH)
DAY = tokens(1000, measure=Measure.TOKENS_PER_DAY)
SLOTS = each(Measure.CONCURRENT, 2)


@pytest.fixture
async def client(redis_server: RedisServer, anyio_backend: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(redis_server.url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def store(client: Redis) -> RedisStore:
    return RedisStore(client, replica="one")


async def state(store: RedisStore, *demands: Demand) -> list[tuple[int, int]]:
    """Used, and held of it."""
    return [(each.used, each.held) for each in await store.usage([demand.quota for demand in demands])]


async def test_what_is_held_is_held_again_before_anybody_else_gets_it(store: RedisStore, client: Redis) -> None:
    demands = [CREDIT, MONTH, SLOTS]
    taken = await hold(store, "a", *demands, desired=900)
    await client.flushall()
    other = await hold(store, "b", *demands, desired=900)
    assert other.granted_tokens == 100
    assert (await refusal(store, "c", *demands)).quota.scope.measure in (CREDIT.quota.scope.measure, Measure.CONCURRENT)
    assert (await store.settle(taken, Use(1, 700, 700))).outcome is SettleOutcome.SETTLED
    assert (await store.settle(other, Use(1, 50, 50))).outcome is SettleOutcome.SETTLED
    assert await state(store, *demands) == [(750, 0), (750, 0), (0, 0)]


async def test_what_was_committed_counts_again(store: RedisStore, client: Redis) -> None:
    demands = [CREDIT, MONTH, DAY]
    await store.settle(await hold(store, "a", *demands, desired=900), Use(1, 600, 800))
    await client.flushall()
    late = await hold(store, "b", *demands, desired=900)
    assert late.granted_tokens == 200
    await client.flushall()
    await store.settle(late, Use(1, 5, 10))
    assert await state(store, *demands) == [(810, 0), (810, 0), (605, 0)]


async def test_a_heartbeat_finds_it_missing(store: RedisStore, client: Redis) -> None:
    taken = await hold(store, "a", CREDIT, desired=900)
    await client.flushall()
    assert await store.extend(taken)
    assert await state(store, CREDIT) == [(900, 900)]


async def test_each_replica_records_its_own_part(store: RedisStore, client: Redis) -> None:
    second = RedisStore(client, replica="two")
    await store.settle(await hold(store, "a", CREDIT, desired=300), Use(1, 300, 300))
    open_at_second = await hold(second, "b", CREDIT, desired=400)
    await second.restore([Committed(scope(Measure.CREDIT_NANODOLLARS), 0, 300)])
    await client.flushall()
    assert await second.extend(open_at_second)
    assert await state(store, CREDIT) == [(700, 400)]
    await hold(store, "c", CREDIT, minimum=0, desired=0)
    assert await state(store, CREDIT) == [(1000, 400)]


async def test_a_store_that_loses_nothing_is_told_nothing_again(store: RedisStore, client: Redis) -> None:
    await store.restore([Committed(scope(Measure.CREDIT_NANODOLLARS), 0, 300)])
    again = RedisStore(client, replica="one")  # the process has restarted
    await again.restore([Committed(scope(Measure.CREDIT_NANODOLLARS), 0, 300)])
    await again.settle(await hold(again, "a", CREDIT, desired=100), Use(1, 100, 100))
    assert await state(store, CREDIT) == [(400, 0)]
    await hold(store, "b", CREDIT, desired=100)
    assert await state(store, CREDIT) == [(500, 100)]


async def test_what_a_killed_process_could_not_write_down_is_given_back(store: RedisStore, client: Redis) -> None:
    """By the books, which bill less; the parts of other replicas, and what is held, stay."""
    other = RedisStore(client, replica="two")
    for at, id in ((store, "a"), (other, "b")):
        await at.settle(await hold(at, id, CREDIT, MONTH, DAY, desired=300), Use(1, 300, 300))
    await hold(other, "c", CREDIT, MONTH, DAY, desired=100)
    again = RedisStore(client, replica="one")
    billed = [Committed(demand.quota.scope, int(time.time() * 1000), 280) for demand in (CREDIT, MONTH)]
    for _ in range(2):
        await again.restore(billed)
    assert await state(other, CREDIT, MONTH, DAY) == [(680, 100), (680, 100), (700, 100)]
    await again.settle(await hold(again, "d", CREDIT, MONTH, DAY, desired=50), Use(1, 50, 50))
    await other.restore([Committed(demand.quota.scope, int(time.time() * 1000), 310) for demand in (CREDIT, MONTH)])
    assert await state(other, CREDIT, MONTH) == [(740, 100), (740, 100)]


async def test_counts_without_parts_are_raised_to_what_the_books_say(store: RedisStore, client: Redis) -> None:
    """As they are from before replicas recorded theirs."""
    await store.settle(await hold(store, "a", CREDIT, desired=300), Use(1, 300, 300))
    keys = [key async for key in client.scan_iter("*:parts")]
    assert keys
    await client.delete(*keys)
    await store.restore([Committed(CREDIT.quota.scope, 0, 200)])
    assert await state(store, CREDIT) == [(300, 0)]
    await store.restore([Committed(CREDIT.quota.scope, 0, 210)])
    assert await state(store, CREDIT) == [(310, 0)]


async def test_a_tenant_of_which_nothing_is_left_has_nothing_to_lose(store: RedisStore, client: Redis) -> None:
    minute = tokens(1000)
    await store.settle(await hold(store, "a", minute, SLOTS), Use(1, 50))
    await client.flushall()
    await hold(store, "b", minute, SLOTS, desired=10)
    assert await state(store, minute, SLOTS) == [(10, 10), (1, 1)]


operations = st.lists(
    st.tuples(st.sampled_from(["hold", "settle", "extend", "lose", "lose"]), st.integers(0, 3), st.integers(0, 400)),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations)
def test_whenever_it_loses_its_data_no_more_is_given_out_than_there_is(
    redis_server: RedisServer, steps: Sequence[tuple[str, int, int]]
) -> None:
    async def run() -> None:
        client: Any = Redis.from_url(redis_server.url)
        try:
            await client.flushall()
            clock = Clock()
            store = RedisStore(client, clock, replica="one")
            open_holds: list[Hold] = []
            spent = 0
            for number, (step, index, amount) in enumerate(steps):
                clock.advance(1)
                if step == "lose":
                    await client.flushall()
                elif step == "hold":
                    held = sum(each.granted_tokens for each in open_holds)
                    if spent + held < CREDIT.quota.limit:
                        taken = await hold(store, str(number), CREDIT, desired=amount + 1)
                        assert taken.granted_tokens == min(amount + 1, CREDIT.quota.limit - spent - held)
                        open_holds.append(taken)
                    else:
                        await refusal(store, str(number), CREDIT)
                elif open_holds:
                    chosen = open_holds[index % len(open_holds)]
                    if step == "extend":
                        assert await store.extend(chosen)
                    else:
                        used = min(amount, chosen.granted_tokens)
                        assert (await store.settle(chosen, Use(1, used, used))).outcome is SettleOutcome.SETTLED
                        open_holds.remove(chosen)
                        spent += used
            await hold(store, "last", CREDIT, minimum=0, desired=0)
            held = sum(each.granted_tokens for each in open_holds)
            assert await state(store, CREDIT) == [(spent + held, held)]
        finally:
            await client.aclose()

    asyncio.run(run())
