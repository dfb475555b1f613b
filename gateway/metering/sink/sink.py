"""The sink: moves usage from Kafka to ClickHouse.

Messages of a partition are stored in batches, each under a deduplication token of its offsets, and their offsets are
committed afterwards. A crash repeats messages and loses none; `Intake` describes the effect of a repetition. The sink
does not rely on timely rebalance notifications: a batch that another member stores, too, is an ordinary repetition.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from gateway.analytics import AnalyticsError
from gateway.metering.relay.destination import Backoff
from gateway.metering.sink.intake import Intake, Message, Stored
from gateway.metering.sink.message_source import Fetched, MessageSource, Partition, SourceAway

BATCH_MESSAGES = 5_000
"""Messages of all partitions. Twice this number may be held while a batch is stored."""
LINGER_MS = 1_000
FIRST_BACKOFF_S = 0.2
LONGEST_BACKOFF_S = 10.0

_log = structlog.get_logger("turnpike.sink")


@dataclass(slots=True)
class SinkCounts:
    """Counters since the start."""

    events_total: int = 0
    unsigned_total: int = 0
    """Part of the events: accepted without a signature."""
    dead_letters_total: int = 0
    unauthenticated_total: int = 0
    """Events with a missing or invalid signature. Stored as dead letters, but not counted in `dead_letters_total`."""
    batches_total: int = 0
    failures_total: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """Messages stored under one deduplication token. Immutable."""

    partition: Partition
    messages: list[Message]


class Sink:
    """One member of the consumer group. `run` returns after `stop`. It closes the source, not the store."""

    def __init__(
        self,
        source: MessageSource,
        intake: Intake,
        *,
        batch_messages: int = BATCH_MESSAGES,
        linger_ms: int = LINGER_MS,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._intake = intake
        self._batch_messages = batch_messages
        self._linger_s = linger_ms / 1000
        self._backoff = backoff or Backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S)
        self._clock = clock
        self._fetched: dict[Partition, list[Message]] = {}
        self._oldest = 0.0
        self._batches: deque[_Batch] = deque()
        self._uncommitted: dict[Partition, int] = {}
        self._retry_at = 0.0
        self._stopping = asyncio.Event()
        self._errors: dict[str, str] = {}
        self.counts = SinkCounts()

    @property
    def last_error(self) -> str | None:
        """Current error of fetching or storing; None without one."""
        return next(iter(self._errors.values()), None)

    @property
    def held_messages(self) -> int:
        """Number of messages that are fetched and not stored."""
        return sum(self.held_by_partition.values())

    @property
    def held_by_partition(self) -> Mapping[Partition, int]:
        """Held messages of each partition with any. Thread-safe, as is `oldest_ms`."""
        held = {place: len(messages) for place, messages in list(self._fetched.items())}
        for batch in list(self._batches):
            held[batch.partition] = held.get(batch.partition, 0) + len(batch.messages)
        return held

    @property
    def oldest_ms(self) -> int | None:
        """Timestamp of the oldest held message, Unix milliseconds; None without one."""
        heads = [messages[0] for messages in list(self._fetched.values()) if messages]
        heads += [batch.messages[0] for batch in list(self._batches)]
        return min((head.timestamp_ms for head in heads), default=None)

    def stop(self) -> None:
        """Try once to store and commit the fetched messages, then end."""
        self._stopping.set()

    async def run(self) -> None:
        try:
            while not self._stopping.is_set():
                await self._attempt(self._fetch)
                if self._clock() < self._retry_at:
                    continue  # fetching keeps the group membership
                if not self._batches and self._is_due():
                    self._seal()
                await self._attempt(self._store)
            if not self._batches:
                self._seal()
            await self._attempt(self._store)
        finally:
            await self._source.aclose()

    async def _fetch(self) -> None:
        try:
            self._take(await self._source.fetch(more=self._waiting() < self._batch_messages))
        except SourceAway:
            await asyncio.sleep(FIRST_BACKOFF_S)  # it may fail immediately every time
            raise

    async def _store(self) -> None:
        while self._batches:
            partition, messages = self._batches[0].partition, self._batches[0].messages
            stored = await self._intake.store(*partition, messages)
            self._batches.popleft()
            self._uncommitted[partition] = messages[-1].offset + 1
            self._count(partition, stored)
        if self._uncommitted:
            await self._source.commit(self._uncommitted)
            self._uncommitted = {}
            self._backoff.reset()

    def _take(self, fetched: Fetched) -> None:
        for partition, messages in fetched.messages.items():
            if not messages:
                continue
            if not self._fetched:
                self._oldest = self._clock()
            held = self._fetched.setdefault(partition, [])
            if held and messages[0].offset <= held[-1].offset:
                held.clear()  # reassigned: the partition starts at its committed offset
            held.extend(messages)
        # Partitions of other members are stored there.
        self._fetched = {place: held for place, held in self._fetched.items() if place in fetched.assigned}
        self._batches = deque(batch for batch in self._batches if batch.partition in fetched.assigned)
        self._uncommitted = {place: offset for place, offset in self._uncommitted.items() if place in fetched.assigned}

    def _waiting(self) -> int:
        return sum(map(len, self._fetched.values()))

    def _is_due(self) -> bool:
        waiting = self._waiting()
        return waiting >= self._batch_messages or (waiting > 0 and self._clock() - self._oldest >= self._linger_s)

    def _seal(self) -> None:
        self._batches.extend(_Batch(partition, messages) for partition, messages in sorted(self._fetched.items()))
        self._fetched = {}

    async def _attempt(self, step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except (SourceAway, AnalyticsError) as error:
            self.counts.failures_total += 1
            if not self._errors:
                _log.error("usage cannot be brought on; it stays in Kafka", error=str(error))
            self._errors[step.__name__] = str(error)
            if isinstance(error, AnalyticsError):
                self._retry_at = self._clock() + self._backoff.next_s()
        else:
            if self._errors.pop(step.__name__, None) is not None and not self._errors:
                _log.warning("usage is brought on again")

    def _count(self, partition: Partition, stored: Stored) -> None:
        counts = self.counts
        counts.batches_total += 1
        counts.events_total += stored.events
        counts.unsigned_total += stored.unsigned
        counts.dead_letters_total += stored.dead_letters
        counts.unauthenticated_total += stored.unauthenticated
        if stored.dead_letters:
            _log.error("messages are no usage events", partition=partition.number, messages=stored.dead_letters)
        if stored.unauthenticated:
            _log.error(
                "usage events are not authenticated and not billed",
                partition=partition.number,
                events=stored.unauthenticated,
            )
