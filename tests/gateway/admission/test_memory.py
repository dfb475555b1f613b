"""The store of this process: what it remembers, and for how long."""

import time

import pytest

from gateway.admission import Measure, MemoryStore, SettleOutcome, memory
from gateway.admission.model import Use
from gateway.admission.store import FINISHED_MS, HOLD_TTL_MS
from tests.support.limit_stores import Clock, each, hold, tokens


@pytest.fixture
def store(clock: Clock) -> MemoryStore:
    return MemoryStore(clock)


async def test_a_finished_request_is_forgotten_after_a_while(store: MemoryStore, clock: Clock) -> None:
    taken = await hold(store, "a", tokens(1000))
    await store.settle(taken, Use(1, 50))
    clock.advance(FINISHED_MS / 1000 - 1)
    assert (await store.settle(taken, Use(1, 50))).outcome is SettleOutcome.REPEATED
    clock.advance(FINISHED_MS / 1000)
    assert (await store.settle(taken, Use(1, 50))).outcome is SettleOutcome.UNKNOWN


async def test_memory_is_bounded(store: MemoryStore, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MAX_FINISHED", 10)
    for n in range(300):
        demand = each(Measure.REQUESTS_PER_MINUTE, 5)
        taken = await hold(store, str(n), tokens(10**9), each(Measure.CONCURRENT, 1))
        await store.settle(taken, Use(1, 1))
        await hold(store, f"lost {n}", demand)
        clock.advance(15)
    assert len(store._finished) <= 11
    assert len(store._open) <= HOLD_TTL_MS / 15_000
    assert len(store._expiries) <= 2 * HOLD_TTL_MS / 15_000
    clock.advance(3600)
    for _ in range(3):
        await store.usage([])
    assert not store._counters
    assert not store._open


def test_the_clock_is_the_wall_clock_and_goes_on() -> None:
    clock = memory.steady_clock()
    assert abs(clock() - time.time() * 1000) < 1000
    assert clock() <= clock()
