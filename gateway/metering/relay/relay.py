"""The relay: delivers the journal's events to the destination, at least once and in order.

No request waits for it. While the destination is unavailable the journal grows, and requests are still served.
"""

import asyncio
import contextlib
import math
import sqlite3
import time
from collections.abc import Sequence
from functools import partial

import structlog

from gateway.common.timestamps import unix_ms
from gateway.metering.event import UsageEvent
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import JournalFile, JournalRow
from gateway.metering.relay.destination import Backoff, Destination, DestinationAway, DestinationRefused
from gateway.metering.worker import Worker

BATCH_EVENTS = 1000
FIRST_BACKOFF_S = 0.1
LONGEST_BACKOFF_S = 10.0

_log = structlog.get_logger("turnpike.relay")


class Relay:
    """Reads events after the last acknowledged one, delivers them, and acknowledges them; holds one batch at a time.

    A failed batch is delivered again with the same rows until it succeeds, so a destination recognizes a repetition by
    the first and last sequence. This does not hold across restarts: the next process starts at the same row, but its
    batch may be longer.

    Runs on one event loop between `start` and `aclose`.
    """

    def __init__(
        self,
        journal: Journal,
        destination: Destination,
        *,
        batch_events: int = BATCH_EVENTS,
        backoff: Backoff | None = None,
    ) -> None:
        self._journal = journal
        self._destination = destination
        self._batch_events = batch_events
        self._backoff = backoff or Backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S)
        self._reader = Worker("relay")
        self._file: JournalFile | None = None
        self._delivered: int | None = None
        self._oldest: JournalRow | None = None
        """Lower bound on the age of undelivered events; None without any."""
        self._failing_since: float | None = None
        self._awaited_after = math.inf
        """Sequence after which a new event sets `_woken`."""
        self._woken = asyncio.Event()
        self._stopping = False
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self.last_error: str | None = None
        """Error of the last delivery; None if it succeeded."""
        self.delivered_total = 0
        self.failures_total = 0

    @property
    def backlog_events(self) -> int:
        """Number of events on this machine's disk that are not delivered."""
        if self._delivered is None:
            return self._journal.backlog_events
        return self._journal.last_sequence - self._delivered

    @property
    def backlog_age_s(self) -> float:
        """Seconds since the end of the oldest request whose event is not delivered; 0 without one, or before the first
        read."""
        if self._oldest is None or not self.backlog_events:
            return 0.0
        ended_ms = unix_ms(UsageEvent.from_json(self._oldest.body).occurred_at)
        return max(0.0, time.time() - ended_ms / 1000)

    @property
    def failing_s(self) -> float:
        """Seconds since deliveries started to fail; 0 if they succeed."""
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since

    def start(self) -> None:
        assert self._task is None
        self._journal.on_events = partial(self._on_events, asyncio.get_running_loop())
        self._task = asyncio.create_task(self._run(), name="relay")

    async def aclose(self, deadline_s: float) -> None:
        """Try to deliver the remaining events once, for at most `deadline_s`. The others stay in the journal for the
        next process. Must be called before the journal is closed. Idempotent."""
        self._stopping = True
        self._woken.set()
        if self._closed:
            return
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=deadline_s)
            self._task.cancel()
            await asyncio.wait([self._task])
            self._journal.on_events = None
            if self.backlog_events:
                _log.warning("events stay in the journal until the next start", events=self.backlog_events)
        await self._destination.aclose()
        await self._reader.call(self._close_file)
        self._reader.end()

    async def _run(self) -> None:
        rows: Sequence[JournalRow] = ()
        while True:
            try:
                rows = rows or await self._reader.call(self._read)
                if rows:
                    self._oldest = rows[0]
                    await self._destination.deliver(rows)
            except Exception as error:  # keep the task alive and report any error
                self._failed(error)
                if self._stopping:
                    return
                await self._until_after(math.inf, self._backoff.next_s())
                continue
            if rows:
                self._succeeded(rows)
            elif self._stopping:
                return
            if len(rows) < self._batch_events:
                await self._gather()
            rows = ()

    def _read(self) -> list[JournalRow]:
        if self._file is None:
            self._file = JournalFile(self._journal.path, read_only=True)
        if self._delivered is None:
            self._delivered = self._file.relayed_sequence()
        return self._file.events_after(self._delivered, self._batch_events)

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _succeeded(self, rows: Sequence[JournalRow]) -> None:
        self._delivered = rows[-1].sequence
        self._journal.acknowledge(self._delivered)
        self._oldest = rows[-1] if self.backlog_events else None
        self.delivered_total += len(rows)
        if self.last_error is not None:
            _log.warning("usage arrives again", after_s=round(self.failing_s), backlog_events=self.backlog_events)
        self.last_error = self._failing_since = None
        self._backoff.reset()

    def _failed(self, error: Exception) -> None:
        self.failures_total += 1
        self.last_error = str(error)
        if not isinstance(error, DestinationAway | DestinationRefused | sqlite3.Error):
            _log.exception("the relay failed; it goes on", error=self.last_error)
        elif self._failing_since is None:
            _log.error("usage cannot be delivered; it stays in the journal", error=self.last_error)
        if self._failing_since is None:
            self._failing_since = time.monotonic()

    async def _gather(self) -> None:
        """Wait for an event, then for the destination's linger time or a full batch."""
        delivered = self._delivered or 0
        await self._until_after(delivered)
        await self._until_after(delivered + self._batch_events - 1, self._destination.linger_ms / 1000)

    async def _until_after(self, sequence: float, timeout_s: float | None = None) -> None:
        """Wait until the journal has an event after `sequence`, `timeout_s` has passed, or the relay stops."""
        self._awaited_after = sequence  # before the journal is asked: it sets its sequence before it reads this one
        try:
            async with asyncio.timeout(timeout_s):
                while self._journal.last_sequence <= sequence and not self._stopping:
                    self._woken.clear()
                    await self._woken.wait()
        except TimeoutError:
            return
        finally:
            self._awaited_after = math.inf

    def _on_events(self, loop: asyncio.AbstractEventLoop) -> None:
        """Callback on the journal's thread after events were written."""
        if self._journal.last_sequence > self._awaited_after:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._woken.set)
