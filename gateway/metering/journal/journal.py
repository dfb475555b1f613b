"""The journal of usage: a request's consumption is on this machine's disk before its client sees the end of its answer.

A request is opened at admission, advanced while it streams, and closed by its event. All streams share one commit
(group commit), at most `INTERVAL_MS` after a change. A change that a caller waits for is committed at once, but at most
every `GATHER_MS` while other requests are running that may wait, too. Progress is written after its tokens were handed
to the socket, so a crash never bills more than was sent. Nothing of an answer is sent before its request is on the
disk, or while a change is unwritten for more than `MAX_LAG_INTERVALS`, so a crash loses at most what was sent in that
time.
"""

import asyncio
import fcntl
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from math import inf
from pathlib import Path
from typing import IO

import structlog

from engine.runtime.futures import outcome_of
from gateway.errors import OperatorError
from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.batch import Batch, Ended
from gateway.metering.journal.journal_file import JournalFile, OpenRequest, Spent
from gateway.metering.journal.usage_context import Progress, UsageContext, Work, event_of

INTERVAL_MS = 50
MAX_LAG_INTERVALS = 2
"""An interval, and as long again for a commit."""
GATHER_MS = 5
RETRY_S = 1.0
DISK_CHECK_S = 1.0
PRUNE_EVERY_S = 60.0
PRUNE_EVENTS = 10_000
MIN_FREE_BYTES = 256 * 1024**2
RETENTION_DAYS = 7
_DAY_MS = 86_400_000

_log = structlog.get_logger("turnpike.journal")


class JournalUnavailable(OperatorError):
    """Usage cannot be made durable, so new requests are rejected."""


class JournalInUse(OperatorError):
    """Another process holds this journal's lock."""


class Journal:
    """Owns the journal's file and the thread that writes it. All methods are thread-safe, and only the
    constructor and `aclose` block on the disk.

    A crash loses at most what running streams sent in `MAX_LAG_INTERVALS` times `interval_ms`. Below `min_free_bytes`
    of disk space new requests are rejected and running ones finish. Delivered events are kept for `retention_days`.
    """

    def __init__(
        self,
        path: Path,
        *,
        interval_ms: int = INTERVAL_MS,
        min_free_bytes: int = MIN_FREE_BYTES,
        retention_days: int = RETENTION_DAYS,
    ) -> None:
        self.path = path
        self._interval_s = interval_ms / 1000
        self.min_free_bytes = min_free_bytes
        self._retention_ms = retention_days * _DAY_MS
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_file = _lock(path)
        try:
            self._file = JournalFile(path)
            self._recover()
            self._spent = self._file.spent()
            self._last_sequence = self._file.last_sequence()
            self._relayed_sequence = self._file.relayed_sequence()
        except sqlite3.Error as error:
            self._lock_file.close()
            raise JournalUnavailable(f"{path} cannot be read: {error}") from error
        self.source = self._file.source
        self.on_events: Callable[[], None] | None = None
        """Callback on the journal's thread after events were written. It must not block or raise."""
        self.commits_total = 0
        self.commit_ns_total = 0
        self.failures_total = 0
        self._changed = threading.Condition()
        self._next = Batch()
        self._unwritten = Batch()
        self._unwritten_since = inf
        """Time of the oldest change in `_unwritten`, on the monotonic clock; infinite for an empty batch."""
        self._next_since = inf
        """The same for `_next`."""
        self._under_way: set[str] = set()
        """Ids of open requests."""
        self._trouble: str | None = None
        self._disk_trouble: str | None = None
        self._free_bytes = 0
        self._disk_checked = -DISK_CHECK_S
        self._written = 0.0
        self._pruned = time.monotonic()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str | None:
        """Why new requests are rejected, for readiness and logs; None if they are not."""
        self._check_disk()
        return self._trouble or self._disk_trouble

    @property
    def free_bytes(self) -> int:
        """Free bytes of the journal's disk, at most a second old; 0 if they cannot be read."""
        self._check_disk()
        return self._free_bytes

    @property
    def last_sequence(self) -> int:
        """Sequence of the newest event on the disk."""
        return self._last_sequence

    @property
    def backlog_events(self) -> int:
        """Number of events on the disk that are not delivered."""
        return self._last_sequence - self._relayed_sequence

    @property
    def spent_at_start(self) -> list[Spent]:
        """Usage before the journal was opened, by month, tenant, key and model."""
        return self._spent

    def begin(self, usage_context: UsageContext) -> None:
        """
        Raises:
            JournalUnavailable: the disk fails or is nearly full, or the journal is closed.
        """
        trouble = self.trouble
        if trouble is not None:
            raise JournalUnavailable(trouble)
        with self._changed:
            self._refuse_if_closed()
            self._under_way.add(usage_context.request_id)
            self._before_change()
            self._next.open(usage_context)

    def advance(self, request_id: str, progress: Progress) -> None:
        """Record what was sent; it is on the disk within the interval."""
        with self._changed:
            self._before_change()
            self._next.advance(request_id, progress)

    async def wait_for_commits(self, request_id: str) -> None:
        """Wait until the request is on the disk and no change is unwritten for too long, before more of its answer is
        sent. Usually both hold, and it returns at once. It outlasts one failed commit.

        Raises:
            JournalUnavailable: the disk fails.
        """
        while True:
            with self._changed:
                batch = self._batch_to_wait_for(request_id)
                if batch is None:
                    return
                self._refuse_if_closed()
                written: Future[None] = Future()
                batch.followers.append(written)
                self._changed.notify()
            await outcome_of(written)

    async def finish(self, event: UsageEvent, otherwise: Callable[[], UsageEvent] | None = None) -> None:
        """Close a request; returns when its event is on the disk.

        If the commit fails, the event that `otherwise` makes is written in its place once the disk works again: the
        usage of a client that gets an error.

        Raises:
            JournalUnavailable: the event is not on the disk.
        """
        done: Future[None] = Future()
        with self._changed:
            self._refuse_if_closed()
            self._end(Ended(event, done, otherwise))
        await outcome_of(done)

    def finish_later(self, event: UsageEvent) -> None:
        """Close a request without waiting for the disk."""
        with self._changed:
            self._refuse_if_closed()
            self._end(Ended(event))

    def follow_credit(self, since_ms: Mapping[str, int]) -> Future[Mapping[str, int]]:
        """Start to sum the cost of these tenants' requests that are admitted at or after a timestamp.

        `since_ms`: tenant id -> Unix milliseconds. A tenant that is followed already keeps its timestamp. The future
        completes with the sums of all followed tenants once they are on the disk, or with JournalUnavailable.
        """
        told: Future[Mapping[str, int]] = Future()
        with self._changed:
            if self._closing:
                told.set_exception(JournalUnavailable("the journal is closed"))
                return told
            self._before_change()
            self._next.follow_credit(since_ms, told)
            self._changed.notify()
        return told

    def acknowledge(self, sequence: int) -> None:
        """Record that all events up to `sequence` are delivered. It need not be durable: delivery is at least once."""
        with self._changed:
            self._before_change()
            self._next.acknowledge(sequence)

    async def aclose(self) -> None:
        """Write the remaining changes and close the file. Idempotent."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _before_change(self) -> None:
        """The writer sleeps while there are no changes."""
        if not self._next:
            self._next_since = time.monotonic()
            self._changed.notify()

    def _batch_to_wait_for(self, request_id: str) -> Batch | None:
        if request_id in self._next.opened:
            return self._next
        latest = time.monotonic() - MAX_LAG_INTERVALS * self._interval_s
        if request_id in self._unwritten.opened or self._unwritten_since < latest:
            return self._unwritten
        return self._next if self._next_since < latest else None

    def _end(self, ended: Ended) -> None:
        self._under_way.discard(ended.event.request_id)
        self._before_change()
        self._next.end(ended)
        self._changed.notify()

    def _refuse_if_closed(self) -> None:
        if self._closing:
            raise JournalUnavailable("the journal is closed")

    def _recover(self) -> None:
        """Write the events of requests that the last process left open."""
        left = self._file.open_requests()
        if not left:
            return
        batch = Batch(ended=[Ended(event) for event in map(_interrupted, left)])
        self._file.begin()
        first = self._file.last_sequence() + 1
        self._file.append(first, batch.numbered(self._file.source, first))
        self._file.commit()
        _log.warning("requests were interrupted when the gateway died", requests=len(left))

    def _run(self) -> None:
        while True:
            with self._changed:
                while (due := self._due()) is None or due > time.monotonic():
                    self._changed.wait(None if due is None else due - time.monotonic())
                if not self._unwritten:
                    self._unwritten_since = self._next_since
                self._unwritten.followed_by(self._next)
                self._next, self._next_since = Batch(), inf
                closing = self._closing
            if self._unwritten or (self._trouble is not None and not closing):
                self._write()
            if closing:
                if self._unwritten:
                    _log.error("the journal was closed with events unwritten", requests=len(self._unwritten.ended))
                    for written in self._unwritten.followers:
                        written.set_exception(JournalUnavailable("the journal is closed"))
                self._file.close()
                self._lock_file.close()
                return

    def _due(self) -> float | None:
        """Time of the next write, on the monotonic clock; None without changes. After an error writes continue, to
        detect that the disk has recovered."""
        if self._closing:
            return 0.0
        if self._unwritten or self._trouble is not None:
            return self._written + RETRY_S
        if self._next.ended or self._next.credit_asked or self._next.followers:
            return self._written + (GATHER_MS / 1000 if self._under_way else 0.0)
        return self._written + self._interval_s if self._next else None

    def _write(self) -> None:
        batch = self._unwritten
        started_ns = time.monotonic_ns()
        try:
            last = self._commit(batch)
        except Exception as error:  # keep the thread alive and report any error
            self._fail(batch, error)
        else:
            self._wrote(batch, last)
            batch.told()
        self._written = time.monotonic()
        self.commit_ns_total += time.monotonic_ns() - started_ns

    def _wrote(self, batch: Batch, last: int) -> None:
        self.commits_total += 1
        if self._trouble is not None:
            _log.warning("the journal can be written again")
        self._trouble = None
        has_events = last > self._last_sequence
        self._last_sequence = last
        if has_events and (on_events := self.on_events) is not None:
            on_events()
        self._relayed_sequence = max(self._relayed_sequence, batch.acknowledged)
        with self._changed:
            self._unwritten, self._unwritten_since = Batch(), inf
        for written in batch.followers:
            written.set_result(None)
        for asked in batch.credit_asked:
            asked.set_result(batch.credit_spent)

    def _commit(self, batch: Batch) -> int:
        """Write a batch in one transaction. Returns the sequence of the newest event."""
        file, now_ms = self._file, time.time_ns() // 1_000_000
        file.begin()
        last = file.last_sequence()
        file.open(OpenRequest(usage_context, progress, now_ms) for usage_context, progress in batch.opened.values())
        file.advance(batch.advanced.items(), now_ms)
        if batch.credit_since_ms:
            file.follow_credit(batch.credit_since_ms)
        if batch.ended:
            file.append(last + 1, batch.numbered(file.source, last + 1))
        if batch.credit_asked:
            batch.credit_spent = file.credit_spent()
        if batch.acknowledged:
            file.acknowledge(batch.acknowledged)
        if not batch:
            file.touch()
        if time.monotonic() - self._pruned > PRUNE_EVERY_S:
            file.prune(now_ms - self._retention_ms, PRUNE_EVENTS)
            self._pruned = time.monotonic()
        file.commit()
        return last + len(batch.ended)

    def _fail(self, batch: Batch, error: Exception) -> None:
        self.failures_total += 1
        self._undo()
        reason = f"usage cannot be written: {error}"
        followers: list[Future[None]] = []
        if self._trouble is None:
            _log.error("the journal cannot be written", error=str(error))
        else:
            with self._changed:
                followers, batch.followers = batch.followers, []
        self._trouble = reason
        for written in followers:
            written.set_exception(JournalUnavailable(reason))
        for asked in batch.credit_asked:
            asked.set_exception(JournalUnavailable(reason))
        batch.credit_asked.clear()
        waiting = batch.fall_back()
        if waiting:
            self._overwrite(batch)
        for each in waiting:
            each.set_exception(JournalUnavailable(reason))

    def _overwrite(self, batch: Batch) -> None:
        """Overwrite a commit whose sync failed. It is complete in the write-ahead log and would take effect if the
        process crashed before the next commit, so the new state is written before callers get the error."""
        try:
            last = self._commit(batch)
        except Exception:  # retried by the next write
            self._undo()
        else:
            self._wrote(batch, last)

    def _undo(self) -> None:
        try:
            self._file.rollback()
        except sqlite3.Error:
            _log.exception("the journal's transaction could not be rolled back")

    def _check_disk(self) -> None:
        now = time.monotonic()
        if now - self._disk_checked < DISK_CHECK_S:
            return
        self._disk_checked = now
        try:
            self._free_bytes = shutil.disk_usage(self.path.parent).free
        except OSError as error:
            self._free_bytes = 0
            self._disk_trouble = f"the journal's disk cannot be read: {error.strerror}"
            return
        nearly_full = self._free_bytes < self.min_free_bytes
        self._disk_trouble = f"the journal's disk has only {self._free_bytes} bytes left" if nearly_full else None


def _interrupted(left: OpenRequest) -> UsageEvent:
    """The event of a request that a crash interrupted: it bills the recorded progress."""
    return event_of(left.usage_context, left.progress, Work(), Ending.INTERRUPTED, 0, left.advanced_ms)


def _lock(path: Path) -> IO[bytes]:
    """Lock the journal until the file is closed or the process ends."""
    file = open(path.with_name(path.name + ".lock"), "ab")  # noqa: SIM115 stays open
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise JournalInUse(f"another process writes {path}") from None
    return file
