"""Redis refused, reset, slow, and gone into a black hole: a real one, behind a proxy."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio import Redis

from gateway.admission import Hold, Measure, Quota, SettleOutcome, StoreAway, breaker, local_share
from gateway.admission.local_share import LocalShare
from gateway.admission.model import HoldRefusal, HoldRequest, Use
from gateway.admission.redis_store import RedisStore
from tests.support.fault_proxy import Fault, FaultProxy, fault_proxy
from tests.support.limit_stores import each, hold, refusal, tokens
from tests.support.servers import RedisServer

FAULTS = [fault for fault in Fault if fault is not Fault.NONE]
TPD = Measure.TOKENS_PER_DAY


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "SILENT_S", 0.3)
    monkeypatch.setattr(breaker, "AWAY_S", 0.3)
    monkeypatch.setattr(breaker, "FIRST_PROBE_S", 0.02)
    monkeypatch.setattr(breaker, "PROBE_S", 0.02)
    monkeypatch.setattr(local_share, "MERGE_S", 0.02)


@pytest.fixture
async def direct(redis_server: RedisServer, anyio_backend: str) -> AsyncIterator[RedisStore]:
    """The same Redis, without faults."""
    client = Redis.from_url(redis_server.url)
    await client.flushall()
    yield RedisStore(client)
    await client.aclose()


@pytest.fixture
async def proxy(redis_server: RedisServer, direct: RedisStore) -> AsyncIterator[FaultProxy]:
    async with fault_proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultProxy) -> AsyncIterator[LocalShare]:
    store = LocalShare(RedisStore.open(f"redis://127.0.0.1:{proxy.port}/0"), 0.2)
    yield store
    await store.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def is_open(store: LocalShare) -> bool:
    return store.counts()["breaker_open"] == 1


async def used(store: RedisStore, quota: Quota) -> int:
    return (await store.usage([quota]))[0].used


@pytest.mark.parametrize("fault", FAULTS)
async def test_overruns_are_bounded(store: LocalShare, direct: RedisStore, proxy: FaultProxy, fault: Fault) -> None:
    demand = tokens(10_000, measure=TPD)
    before = await hold(store, "before", demand, desired=100)
    assert not before.degraded
    await proxy.set(fault)

    held: list[Hold] = []
    for n in range(40):
        answer = await store.hold(HoldRequest(f"{n}", (demand,), 100, 100))
        assert answer.degraded
        if isinstance(answer, Hold):
            held.append(answer)
        else:
            assert answer.quota == demand.quota
    assert is_open(store)
    assert store.counts()["breaker_opened"] == 1, "what it costs is one silence, for all of them"
    assert sum(answer.granted_tokens for answer in held) == 2_000
    assert (await store.settle(before, Use(1, 60))).outcome is SettleOutcome.DEFERRED
    for answer in held[:-1]:
        assert (await store.settle(answer, Use(1, 90))).outcome is SettleOutcome.SETTLED
    assert (await store.usage([demand.quota]))[0].quota.limit == 2_000

    await proxy.set(Fault.NONE)
    await until(lambda: not is_open(store) and not store.counts()["unmerged"])
    assert await used(direct, demand.quota) == 60 + 19 * 90
    assert store.counts()["merged"] == 20
    assert not (await hold(store, "after", demand)).degraded
    await store.settle(held[-1], Use(1, 10))
    assert await used(direct, demand.quota) == 60 + 19 * 90 + 10 + 100


async def test_flaps_do_not_multiply_the_share(store: LocalShare, proxy: FaultProxy) -> None:
    demand = tokens(1_000, measure=TPD)
    granted = 0
    for flap in range(6):
        await proxy.set(Fault.REFUSE)
        assert (await hold(store, f"open {flap}", tokens(10**6), desired=1)).degraded
        answer = await store.hold(HoldRequest(f"{flap}", (demand,), 1, 90))
        granted += answer.granted_tokens if isinstance(answer, Hold) else 0
        await proxy.set(Fault.NONE)
        await until(lambda: not is_open(store))
    assert granted == 200
    assert store.counts()["breaker_opened"] == 6


async def test_a_hold_without_a_response_is_released(store: LocalShare, direct: RedisStore, proxy: FaultProxy) -> None:
    demand = tokens(1_000, measure=TPD)
    await hold(store, "warm", demand, desired=1)
    await proxy.set(Fault.RESET)
    taken = await hold(store, "lost", demand, desired=100)
    assert taken.degraded
    assert await used(direct, demand.quota) == 101
    await proxy.set(Fault.NONE)
    await store.settle(taken, Use(1, 40))
    await until(lambda: not store.counts()["unmerged"])
    assert await used(direct, demand.quota) == 41


async def test_answers_are_not_mixed_up_after_a_late_one(store: LocalShare, proxy: FaultProxy) -> None:
    await hold(store, "warm", tokens(1_000))
    await proxy.set(Fault.SLOW)
    assert (await hold(store, "slow", tokens(1_000, measure=TPD))).degraded
    await proxy.set(Fault.NONE)
    for n in range(20):
        taken = await hold(store, f"{n}", tokens(10**6), desired=n + 1)
        assert taken.granted_tokens == n + 1


async def test_the_share_is_never_less_than_one_request(store: LocalShare, proxy: FaultProxy) -> None:
    await proxy.set(Fault.REFUSE)
    one, none = each(Measure.CONCURRENT, 2), each(Measure.REQUESTS_PER_MINUTE, 0)
    await hold(store, "a", one)
    assert (await refusal(store, "b", one)).quota == one.quota
    assert (await refusal(store, "c", none)).retry_after_ms is None


async def test_more_than_the_share_may_come_back_later(store: LocalShare, proxy: FaultProxy) -> None:
    await proxy.set(Fault.REFUSE)
    refused: HoldRefusal = await refusal(store, "a", tokens(100, prompt=50))
    assert refused.retry_after_ms == local_share.DEGRADED_RETRY_MS
    assert (await refusal(store, "b", tokens(100, prompt=150))).retry_after_ms is None


async def test_heartbeats_go_to_where_the_hold_is(store: LocalShare, proxy: FaultProxy) -> None:
    demand = tokens(1_000)
    shared = await hold(store, "a", demand)
    await proxy.set(Fault.REFUSE)
    local = await hold(store, "b", demand)
    assert await store.extend(local)
    with pytest.raises(StoreAway):
        await store.extend(shared)
    await proxy.set(Fault.NONE)
    await until(lambda: not is_open(store))
    assert await store.extend(shared)


async def test_what_is_deferred_is_bounded_and_settled_once(
    store: LocalShare, direct: RedisStore, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_share, "MAX_DEFERRED", 3)
    demand = tokens(10_000, measure=TPD)
    await proxy.set(Fault.REFUSE)
    for n in range(5):
        taken = await hold(store, f"{n}", demand)
        await store.settle(taken, Use(1, 10))
        await store.settle(taken, Use(1, 10))
    assert (store.counts()["unmerged"], store.counts()["dropped"]) == (3, 2)
    await proxy.set(Fault.NONE)
    await until(lambda: not store.counts()["unmerged"])
    assert await used(direct, demand.quota) == 30


async def test_what_can_be_merged_at_the_end_is(direct: RedisStore, proxy: FaultProxy) -> None:
    store = LocalShare(RedisStore.open(f"redis://127.0.0.1:{proxy.port}/0"), 1.0)
    demand = tokens(10_000, measure=TPD)
    await proxy.set(Fault.REFUSE)
    taken = await hold(store, "a", demand)
    await store.settle(taken, Use(1, 10))
    await proxy.set(Fault.NONE)
    await store.aclose()
    assert await used(direct, demand.quota) == 10


async def test_a_full_redis_counts_as_down(store: LocalShare, direct: RedisStore, redis_server: RedisServer) -> None:
    """It answers PING and takes no writes. No hold is half written during the outage."""
    demand = tokens(1_000, measure=TPD)
    before = await hold(store, "before", demand, desired=100)
    async with Redis.from_url(redis_server.url) as client:
        await client.config_set("maxmemory", 1)
        try:
            taken = await hold(store, "during", demand, desired=50)
            assert taken.degraded
            assert (await store.settle(before, Use(1, 60))).outcome is SettleOutcome.DEFERRED
            for n in range(10):
                await asyncio.sleep(3 * breaker.PROBE_S)
                assert (await hold(store, f"{n}", demand, desired=1)).degraded
            assert (is_open(store), store.counts()["breaker_opened"]) == (True, 1)
            assert await client.ping()
        finally:
            await client.config_set("maxmemory", 0)
    await until(lambda: not is_open(store) and not store.counts()["unmerged"])
    assert await used(direct, demand.quota) == 60


async def test_a_thousand_at_once_are_not_taken_for_an_outage(redis_server: RedisServer, direct: RedisStore) -> None:
    store = LocalShare(RedisStore.open(redis_server.url), 0.2)
    demand = tokens(2_000, measure=TPD)
    answers = await asyncio.gather(*(store.hold(HoldRequest(f"{n}", (demand,), 1, 20)) for n in range(1_000)))
    assert sum(answer.granted_tokens for answer in answers if isinstance(answer, Hold)) == 2_000
    assert (store.counts()["degraded"], store.counts()["breaker_opened"]) == (0, 0)
    await store.aclose()


async def test_nobody_spends_a_balance_that_cannot_be_looked_at(store: LocalShare, proxy: FaultProxy) -> None:
    credit = tokens(10_000, measure=Measure.CREDIT_NANODOLLARS)
    await store.settle(await hold(store, "before", credit), Use(1, 100, 100))
    await proxy.set(Fault.REFUSE)
    with pytest.raises(StoreAway):
        await hold(store, "during", credit)
    await hold(store, "of another kind", tokens(10_000, measure=TPD))
    await proxy.set(Fault.NONE)
    await until(lambda: not is_open(store))
    again = await hold(store, "after", credit, desired=10_000)
    assert again.granted_tokens == 9_900
