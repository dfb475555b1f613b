"""The relay delivers everything, in order, and acknowledges only what has arrived."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.metering.event import UsageEvent
from gateway.metering.journal.journal_file import JournalFile, JournalRow
from gateway.metering.metrics import RelayCollector
from gateway.metering.relay.destination import Backoff, DestinationAway, DestinationRefused
from gateway.metering.relay.relay import Relay
from tests.support.usage_requests import finish, journal_at, until

QUICK = {"backoff": Backoff(0.001, 0.005)}


class Arrivals:
    """A destination in memory. `failures` are raised first, one at each delivery; `lost_answers` of those that follow
    take the rows and fail all the same."""

    linger_ms = 0

    def __init__(self, *failures: Exception, lost_answers: int = 0) -> None:
        self.batches: list[list[int]] = []
        self.arrived: list[int] = []
        self.open_gate = asyncio.Event()
        self.open_gate.set()
        self.asked = self.closed = False
        self._failures = list(failures)
        self._lost_answers = lost_answers

    async def deliver(self, rows: Sequence[JournalRow]) -> None:
        self.asked = True
        await self.open_gate.wait()
        sequences = [UsageEvent.from_json(row.body).sequence for row in rows]
        assert sequences == [row.sequence for row in rows]
        self.batches.append(sequences)
        if self._failures:
            raise self._failures.pop(0)
        self.arrived += sequences
        if self._lost_answers:
            self._lost_answers -= 1
            raise DestinationAway("no answer")

    async def aclose(self) -> None:
        self.closed = True


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


async def test_events_arrive_in_order_in_bounded_batches(path: Path) -> None:
    async with journal_at(path) as journal:
        await finish(journal, 25)
        arrivals = Arrivals()
        relay = Relay(journal, arrivals, batch_events=10)
        relay.start()
        await until(lambda: relay.backlog_events == 0)
        await finish(journal, 3)
        await until(lambda: relay.backlog_events == 0)
        await relay.aclose(5)
    assert arrivals.arrived == list(range(1, 29))
    assert max(map(len, arrivals.batches)) == 10
    assert relay.delivered_total == 28
    assert arrivals.closed


@pytest.mark.parametrize("error", [DestinationAway("gone"), DestinationRefused("no rights"), KeyError("a bug")])
async def test_a_failed_batch_comes_again_as_it_was(path: Path, error: Exception) -> None:
    async with journal_at(path) as journal:
        await finish(journal, 5)
        arrivals = Arrivals(error, error)
        arrivals.open_gate.clear()
        relay = Relay(journal, arrivals, **QUICK)
        relay.start()
        await until(lambda: arrivals.asked)
        await finish(journal, 5)
        arrivals.open_gate.set()
        await until(lambda: relay.backlog_events == 0)
        await relay.aclose(5)
    assert arrivals.batches == [[1, 2, 3, 4, 5]] * 3 + [[6, 7, 8, 9, 10]]
    assert (relay.failures_total, relay.last_error, relay.failing_s) == (2, None, 0.0)


async def test_what_is_away_is_said(path: Path) -> None:
    async with journal_at(path) as journal:
        await finish(journal, 5)
        relay = Relay(journal, Arrivals(*[DestinationAway("gone")] * 10_000), **QUICK)
        relay.start()
        await until(lambda: relay.failures_total > 2)
        assert relay.last_error == "gone"
        assert relay.failing_s > 0
        assert relay.backlog_events == 5
        await relay.aclose(5)
        assert relay.backlog_events == 5


async def test_nothing_is_acknowledged_before_it_has_arrived(path: Path) -> None:
    async with journal_at(path) as journal:
        arrivals = Arrivals()
        arrivals.open_gate.clear()
        relay = Relay(journal, arrivals)
        relay.start()
        await finish(journal, 5)
        await relay.aclose(0.1)  # the delivery hangs, so this gives up on it
        assert journal.backlog_events == 5
    async with journal_at(path) as journal:
        relay = Relay(journal, arrivals)
        arrivals.open_gate.set()
        relay.start()
        await relay.aclose(5)
        await until(lambda: journal.backlog_events == 0)
    assert arrivals.arrived == [1, 2, 3, 4, 5]


async def test_a_restart_goes_on_after_the_last_acknowledged(path: Path) -> None:
    async with journal_at(path) as journal:
        relay = Relay(journal, before := Arrivals())
        relay.start()
        await finish(journal, 5)
        await until(lambda: relay.backlog_events == 0)
        await relay.aclose(5)
        await finish(journal, 2)
    async with journal_at(path) as journal:
        relay = Relay(journal, after := Arrivals())
        relay.start()
        await relay.aclose(5)
    assert before.arrived == [1, 2, 3, 4, 5]
    assert after.arrived == [6, 7]
    file = JournalFile(path, read_only=True)
    assert file.relayed_sequence() == 7
    file.close()


async def test_an_answer_that_is_lost_repeats_the_batch(path: Path) -> None:
    async with journal_at(path) as journal:
        await finish(journal, 3)
        arrivals = Arrivals(lost_answers=2)
        relay = Relay(journal, arrivals, **QUICK)
        relay.start()
        await until(lambda: relay.backlog_events == 0)
        await relay.aclose(5)
    assert arrivals.arrived == [1, 2, 3] * 3


async def test_closing_twice_and_before_the_start(path: Path) -> None:
    async with journal_at(path) as journal:
        relay = Relay(journal, Arrivals())
        await relay.aclose(1)
        await relay.aclose(1)


def test_waits_grow_and_end() -> None:
    backoff = Backoff(1.0, 8.0)
    for bound in (1.0, 2.0, 4.0, 8.0, 8.0):
        assert bound / 2 <= backoff.next_s() <= bound
    backoff.reset()
    assert backoff.next_s() <= 1.0


async def test_metrics_say_what_is_left_and_what_fails(path: Path) -> None:
    def value(name: str) -> float | None:
        return registry.get_sample_value(f"turnpike_usage_{name}")

    async with journal_at(path) as journal:
        arrivals = Arrivals(DestinationAway("gone"))
        arrivals.open_gate.clear()
        relay = Relay(journal, arrivals, **QUICK)
        registry = CollectorRegistry()
        registry.register(RelayCollector(journal, relay))
        relay.start()
        await finish(journal, 5, ended_ms=time.time_ns() // 1_000_000 - 100_000)
        await until(lambda: arrivals.asked)
        assert (value("backlog_events"), value("journalled_events_total")) == (5, 5)
        assert 99 < value("backlog_age_seconds") < 1_000
        assert (value("journal_needed_bytes"), value("journal_free_bytes")) == (256 * 1024**2, journal.free_bytes)
        assert (value("delivered_events_total"), value("journal_trouble")) == (0, 0)
        arrivals.open_gate.set()
        await until(lambda: relay.backlog_events == 0)
        assert (value("backlog_events"), value("delivered_events_total")) == (0, 5)
        assert value("backlog_age_seconds") == 0
        assert (value("delivery_failures_total"), value("failing_seconds")) == (1, 0)
        await relay.aclose(5)
