"""Looks from time to time whether the journal and the store of usage agree, so that drift shows in the metrics.

What was relayed a check earlier has had its time and must be in the store: so the sums of each hour are compared up to
that sequence, which costs either side one statement. Where they differ, `reconcile` names the events of those hours,
once for each state that they are found in.
"""

import asyncio
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from gateway.analytics import Analytics, AnalyticsError
from gateway.analytics.sums import Window
from gateway.metering.journal.journal_file import HOUR_MS, JournalFile, Totals
from gateway.metering.reconciliation.reconciliation import reconcile
from gateway.metering.reconciliation.stored_usage import stored_hours
from gateway.metering.signature import SignaturePolicy

LOOK_BACK_MS = 24 * HOUR_MS
MAX_NAMED_HOURS = 3
"""In so many hours events are compared one by one: enough to raise the alarm, and `turnpike reconcile` has the rest."""

_log = structlog.get_logger("turnpike.books")


@dataclass(frozen=True, slots=True)
class Drift:
    """What a check found, in events; of `hours`, the newest are taken apart."""

    hours: int = 0
    missing: int = 0
    doubled: int = 0
    altered: int = 0


Sides = tuple[Totals, Totals]
"""Of an hour: what the journal says, and what the store does."""


class ReconciliationMonitor:
    """For one event loop, between `start` and `aclose`. What takes time is done on other threads.

    Each property is of the last check that could be made.
    """

    def __init__(
        self, journal_path: Path, analytics: Analytics, signatures: SignaturePolicy, *, every_s: float
    ) -> None:
        self._path = journal_path
        self._analytics = analytics
        self._signatures = signatures
        self._every_s = every_s
        self._settled: int | None = None
        """All events up to this one were relayed when the last check began."""
        self._differing: Mapping[int, Sides] = {}
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self.drift = Drift()
        self.checked_s = 0.0
        """Unix time of its end; 0 before the first."""
        self.failures_total = 0

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.create_task(self._run(), name="books-watch")

    async def aclose(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def check(self, now_ms: int) -> None:
        """Compare once. The first time there is nothing yet that has had its time.

        Raises:
            sqlite3.Error: the journal cannot be read.
            AnalyticsError: the store is away, or says no.
        """
        settled = self._settled
        self._settled = await asyncio.to_thread(self._relayed)
        if settled is None:
            return
        window = Window(now_ms - LOOK_BACK_MS, now_ms).widened_to(HOUR_MS)
        differing = await self._compare(window, settled) if settled else {}  # 0: nothing has ever left the journal
        if differing != self._differing:
            self.drift = await self._named(differing, now_ms)
            self._differing = differing
            self._say(differing)
        self.checked_s = time.time()

    async def _run(self) -> None:
        while True:
            try:
                await self.check(time.time_ns() // 1_000_000)
            except (AnalyticsError, sqlite3.Error) as error:
                self._failed(str(error))
            except Exception as error:  # whatever it is, this task has to stay and say so
                _log.exception("the check of the books failed; it goes on")
                self._failed(str(error))
            else:
                self._failing = False
            await asyncio.sleep(self._every_s)

    async def _compare(self, window: Window, settled: int) -> dict[int, Sides]:
        """The hours in which the two differ."""
        source, journal = await asyncio.to_thread(self._hours, window, settled)
        stored = await stored_hours(self._analytics, source, window, settled)
        sides = {hour: (journal.get(hour, Totals()), stored.get(hour, Totals())) for hour in {*journal, *stored}}
        return {hour: pair for hour, pair in sorted(sides.items()) if pair[0] != pair[1]}

    async def _named(self, differing: Mapping[int, Sides], now_ms: int) -> Drift:
        missing = doubled = altered = 0
        for hour_ms in sorted(differing)[-MAX_NAMED_HOURS:]:
            hour = Window(hour_ms, hour_ms + HOUR_MS)
            found = await reconcile(self._path, self._analytics, hour, self._signatures, now_ms=now_ms)
            missing += len(found.missing) + sum(gap.events for gap in found.missing_ranges)
            doubled += len(found.doubled)
            altered += len(found.altered)
        return Drift(len(differing), missing, doubled, altered)

    def _relayed(self) -> int:
        file = JournalFile(self._path, read_only=True)
        try:
            return file.relayed_sequence()
        finally:
            file.close()

    def _hours(self, window: Window, settled: int) -> tuple[str, dict[int, Totals]]:
        file = JournalFile(self._path, read_only=True)
        try:
            return file.source, file.hours_up_to(settled, window.start_ms, window.end_ms)
        finally:
            file.close()

    def _say(self, differing: Mapping[int, Sides]) -> None:
        if not differing:
            _log.warning("the books agree again")
            return
        hours = [datetime.fromtimestamp(hour_ms / 1000, UTC).isoformat(timespec="minutes") for hour_ms in differing]
        drift = self.drift
        _log.error("the books differ", hours=hours, missing=drift.missing, doubled=drift.doubled, altered=drift.altered)

    def _failed(self, why: str) -> None:
        self.failures_total += 1
        if not self._failing:
            _log.warning("the books cannot be compared", error=why)
        self._failing = True
