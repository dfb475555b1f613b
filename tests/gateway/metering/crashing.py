"""Processes that kill themselves at a chosen step of usage's way, and the record that their clients would keep.

The steps are wrapped here, from outside: the code under test knows nothing of it. Each function is the target of a
process of its own.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gateway.analytics import Analytics, open_analytics
from gateway.metering.event import Ending
from gateway.metering.journal import journal as journal_module
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import JournalFile, JournalRow, OpenRequest
from gateway.metering.journal.usage_context import Progress, UsageContext, Work, event_of
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.relay import relay as relay_module
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.metering.relay.destination import Destination
from gateway.metering.relay.kafka_destination import KafkaDestination
from gateway.metering.relay.relay import Relay
from gateway.metering.signature import Verification
from gateway.metering.sink.intake import EVENTS_TABLE, Intake
from gateway.metering.sink.kafka_source import KafkaSource
from gateway.metering.sink.message_source import Fetched, Partition
from gateway.metering.sink.sink import Sink
from tests.support.usage_requests import NOW_MS, SIGNER, a_usage_context, sent

STREAMS = 6
TOKENS = 6
LIFETIME_S = 30
"""A process that has not died by then exits by itself, and the test fails."""


DWELL_S = 0.03
"""Time for another thread to act on a notification of a step that came too early."""


class Step(StrEnum):
    """A step of the pipeline. Its value names the state that is durable, or known, after it."""

    OPEN = "the journal knows a request"
    PROGRESS = "the journal knows what was sent"
    CLOSE = "the journal has the event"
    READ = "the relay has read events"
    PRODUCE = "messages are on their way to the broker"
    BROKER_ACK = "the broker has them"
    ACKNOWLEDGE = "the journal knows that they have arrived"
    FETCH = "the sink has messages"
    INSERT = "ClickHouse has the events"
    COMMIT = "the broker knows how far the sink is"


@dataclass(slots=True)
class Death:
    """This process ends at the `passing`-th time it comes to a step: before it, or after it."""

    step: Step
    after: bool
    passing: int = 3

    def __str__(self) -> str:
        return f"{self.step.name.lower()}-{'after' if self.after else 'before'}"

    @contextmanager
    def around(self, step: Step) -> Iterator[None]:
        if step is self.step:
            self.passing -= 1
        due = step is self.step and self.passing == 0
        if due and not self.after:
            _die()
        yield
        if due:
            _die()


def _die() -> None:
    time.sleep(DWELL_S)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Record:
    """State known outside of the process: lines of `what request tokens`, each written by one call.

    `sent`: tokens that a client has. `ended`: it has the end of its stream. `kept`: tokens that the journal has
    reported as durable.
    """

    path: Path

    def note(self, what: str, request_id: str, tokens: int) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(f"{what} {request_id} {tokens}\n".encode())

    def tokens(self, what: str) -> dict[str, int]:
        """The highest number that was noted for each request."""
        found: dict[str, int] = {}
        for line in self.path.read_text().splitlines():
            noted, request_id, tokens = line.split()
            if noted == what:
                found[request_id] = max(found.get(request_id, 0), int(tokens))
        return found


def _journal_file(death: Death, record: Record) -> type[JournalFile]:
    """A file that dies around its commits, told apart by what they write."""

    class DyingFile(JournalFile):
        def begin(self) -> None:
            self.steps: set[Step] = set()
            self.kept: list[tuple[str, int]] = []
            super().begin()

        def open(self, opened: Iterable[OpenRequest]) -> None:
            requests = list(opened)
            if requests:
                self.steps.add(Step.OPEN)
            self.kept += [(each.usage_context.request_id, each.progress.completion_tokens) for each in requests]
            super().open(requests)

        def advance(self, progress: Iterable[tuple[str, Progress]], now_ms: int) -> None:
            advanced = list(progress)
            if advanced:
                self.steps.add(Step.PROGRESS)
            self.kept += [(request_id, each.completion_tokens) for request_id, each in advanced]
            super().advance(advanced, now_ms)

        def append(self, first_sequence: int, events: Sequence[Any]) -> None:
            self.steps.add(Step.CLOSE)
            super().append(first_sequence, events)

        def acknowledge(self, sequence: int) -> None:
            self.steps.add(Step.ACKNOWLEDGE)
            super().acknowledge(sequence)

        def commit(self) -> None:
            step = death.step if death.step in self.steps else Step.READ if not self.steps else next(iter(self.steps))
            with death.around(step):
                super().commit()
                for request_id, tokens in self.kept:
                    record.note("kept", request_id, tokens)

        def events_after(self, sequence: int, limit: int) -> list[JournalRow]:
            with death.around(Step.READ):
                return super().events_after(sequence, limit)

    return DyingFile


class _DyingProducer:
    def __init__(self, producer: Any, death: Death) -> None:
        self._producer = producer
        self._death = death

    def send(self, *arguments: Any, **options: Any) -> Any:
        with self._death.around(Step.PRODUCE):
            return self._producer.send(*arguments, **options)

    def flush(self, timeout: float) -> None:
        with self._death.around(Step.BROKER_ACK):
            self._producer.flush(timeout=timeout)

    def close(self, timeout: float) -> None:
        self._producer.close(timeout=timeout)


class _DyingKafkaDestination(KafkaDestination):
    death: Death

    def _connected(self) -> Any:
        return _DyingProducer(super()._connected(), self.death)


class _DyingStore:
    """An `Analytics` that dies around its inserts of events."""

    def __init__(self, analytics: Analytics, death: Death) -> None:
        self._analytics = analytics
        self._death = death

    async def insert(self, table: str, *arguments: Any) -> None:
        with self._death.around(Step.INSERT if table == EVENTS_TABLE else Step.READ):
            await self._analytics.insert(table, *arguments)


class _DyingSource(KafkaSource):
    death: Death

    async def fetch(self, *, more: bool) -> Fetched:
        fetched = await super().fetch(more=more)
        if fetched.messages:  # fetching what is there changes nothing, so that before it is between two fetches
            with self.death.around(Step.FETCH):
                pass
        return fetched

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        with self.death.around(Step.COMMIT):
            await super().commit(offsets)


async def _stream(journal: Journal, record: Record, usage_context: UsageContext) -> None:
    """One request: its tokens reach the client, then the journal, and at the end the journal comes first."""
    request_id = usage_context.request_id
    journal.begin(usage_context)
    for tokens in range(1, TOKENS + 1):
        record.note("sent", request_id, tokens)
        journal.advance(request_id, sent(tokens))
        await asyncio.sleep(0.004)
    event = event_of(usage_context, sent(TOKENS), Work(), Ending.STOP, 200, NOW_MS)
    await journal.finish(event)
    record.note("ended", request_id, TOKENS)


async def _serve(journal: Journal, destination: Destination, record: Record, name: str) -> None:
    relay = Relay(journal, destination, batch_events=10)
    relay.start()
    async with asyncio.timeout(LIFETIME_S):
        for turn in range(10_000):
            contexts = [a_usage_context(f"{name}-{turn}-{n}", f"t{n}") for n in range(STREAMS)]
            await asyncio.gather(*(_stream(journal, record, usage_context) for usage_context in contexts))


def run_gateway(path: Path, record: Record, death: Death, kafka_url: str | None, topic: str, store_url: str) -> None:
    """Streams requests and relays their events, to Kafka or to the store itself, until it dies."""
    dying_file = _journal_file(death, record)
    journal_module.JournalFile = relay_module.JournalFile = dying_file  # type: ignore[misc]

    async def main() -> None:
        journal = Journal(path, interval_ms=5)
        if kafka_url is None:
            await _serve(
                journal, AnalyticsDestination(_DyingStore(open_analytics(store_url), death), SIGNER), record, str(death)
            )
        else:
            destination = _DyingKafkaDestination(KafkaCluster.from_url(kafka_url), topic, SIGNER)
            destination.death = death
            await _serve(journal, destination, record, str(death))

    asyncio.run(main())


def run_sink(kafka_url: str, topic: str, store_url: str, member: str, death: Death) -> None:
    """Brings messages to the store until it dies."""

    async def main() -> None:
        source = _DyingSource(
            KafkaCluster.from_url(kafka_url), topic, group=f"sink-{topic}", member=member, heartbeat_ms=300
        )
        source.death = death
        sink = Sink(source, Intake(_DyingStore(open_analytics(store_url), death), Verification(SIGNER)), linger_ms=50)
        async with asyncio.timeout(LIFETIME_S):
            await sink.run()

    asyncio.run(main())
