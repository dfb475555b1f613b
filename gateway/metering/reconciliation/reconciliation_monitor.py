"""Compares the journal with the usage store periodically and reports drift as metrics.

Events that were delivered before the previous check must be in the store. The sums of each hour are compared up to that
sequence, with one statement on each side. If they differ, `reconcile` names the events of these hours, once per change
of the differences.

Once a day the rollups of the last whole day (UTC) are compared with its events and corrected.
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
from gateway.analytics.rollups import rebuild
from gateway.analytics.sums import TimeRange
from gateway.metering.journal.journal_file import HOUR_MS, JournalFile, Totals
from gateway.metering.reconciliation.reconciliation import SETTLED_AFTER_MS, reconcile
from gateway.metering.reconciliation.stored_usage import stored_hours
from gateway.metering.signature import SignaturePolicy

DAY_MS = 24 * HOUR_MS
LOOK_BACK_MS = 24 * HOUR_MS
MAX_NAMED_HOURS = 3
"""Number of differing hours whose events are compared one by one; `turnpike reconcile` covers the others."""

_log = structlog.get_logger("turnpike.books")


@dataclass(frozen=True, slots=True)
class Drift:
    """Result of a check. `hours`: differing hours. The others count events of the newest `MAX_NAMED_HOURS` of them."""

    hours: int = 0
    missing: int = 0
    doubled: int = 0
    altered: int = 0


Sides = tuple[Totals, Totals]
"""An hour's sums in the journal and in the store."""


class ReconciliationMonitor:
    """Runs on one event loop between `start` and `aclose`, with blocking work on threads.

    `drift` and `checked_s` are of the last successful check. `is_failing`: the check after it has failed.
    `every_s`: seconds between two checks.
    """

    def __init__(
        self, journal_path: Path, analytics: Analytics, signatures: SignaturePolicy, *, every_s: float
    ) -> None:
        self._path = journal_path
        self._analytics = analytics
        self._signatures = signatures
        self.every_s = every_s
        self._settled: int | None = None
        """Sequence up to which events were delivered at the start of the last check."""
        self._differing: Mapping[int, Sides] = {}
        self._corrected_until_ms = 0
        """End of the last day whose rollups were corrected."""
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self.drift = Drift()
        self.checked_s = 0.0
        """Unix time of the end of the last check; 0 before the first."""
        self.failures_total = 0

    @property
    def is_failing(self) -> bool:
        return self._failing

    def start(self) -> None:
        assert self._task is None
        self._task = asyncio.create_task(self._run(), name="reconciliation-monitor")

    async def aclose(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def check(self, now_ms: int) -> None:
        """Compare once. The first check only records the delivered sequence.

        Raises:
            sqlite3.Error: the journal cannot be read.
            AnalyticsError: the store is unavailable or rejects the query.
        """
        settled = self._settled
        self._settled = await asyncio.to_thread(self._relayed)
        if settled is None:
            return
        window = TimeRange(now_ms - LOOK_BACK_MS, now_ms).widened_to(HOUR_MS)
        differing = await self._compare(window, settled) if settled else {}  # 0: no event was ever delivered
        if differing != self._differing:
            self.drift = await self._named(differing, now_ms)
            self._differing = differing
            self._say(differing)
        if settled:
            await self._correct_rollups(now_ms)
        self.checked_s = time.time()

    async def _run(self) -> None:
        while True:
            try:
                await self.check(time.time_ns() // 1_000_000)
            except (AnalyticsError, sqlite3.Error) as error:
                self._failed(str(error))
            except Exception as error:  # keep the task alive and report any error
                _log.exception("the check of the books failed; it goes on")
                self._failed(str(error))
            else:
                self._failing = False
            await asyncio.sleep(self.every_s)

    async def _compare(self, window: TimeRange, settled: int) -> dict[int, Sides]:
        """The hours whose sums differ."""
        source, journal = await asyncio.to_thread(self._hours, window, settled)
        stored = await stored_hours(self._analytics, source, window, settled)
        sides = {hour: (journal.get(hour, Totals()), stored.get(hour, Totals())) for hour in {*journal, *stored}}
        return {hour: pair for hour, pair in sorted(sides.items()) if pair[0] != pair[1]}

    async def _correct_rollups(self, now_ms: int) -> None:
        """Once per day, when its events have arrived: a sink must not be storing events of it."""
        end_ms = (now_ms - SETTLED_AFTER_MS) // DAY_MS * DAY_MS
        if end_ms > self._corrected_until_ms:
            if corrected := await rebuild(self._analytics, TimeRange(end_ms - DAY_MS, end_ms)):
                _log.warning("the dashboards' sums of a day were wrong and are corrected", sums=corrected)
            self._corrected_until_ms = end_ms

    async def _named(self, differing: Mapping[int, Sides], now_ms: int) -> Drift:
        missing = doubled = altered = 0
        for hour_ms in sorted(differing)[-MAX_NAMED_HOURS:]:
            hour = TimeRange(hour_ms, hour_ms + HOUR_MS)
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

    def _hours(self, window: TimeRange, settled: int) -> tuple[str, dict[int, Totals]]:
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
