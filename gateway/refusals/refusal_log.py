"""Records refusals, and writes their counts to the analytics store.

    record -> counts by minute and kind -> buffer of rows -> refusals in ClickHouse

A row enters the buffer with its id and never changes. It leaves when the store has acknowledged it, so an insert of
unknown outcome is repeated, and the store keeps one of the copies. Every gateway writes rows of its own.

A crash loses the refusals since the last flush, of at most `FLUSH_S`, and those that a store that was away has not
taken. While it is away, the oldest rows beyond `MAX_BUFFERED_ROWS` are dropped and counted in `dropped_total`.
"""

import asyncio
import logging
from itertools import islice
from uuid import UUID

from gateway.analytics import Analytics, AnalyticsError, AnalyticsRefused
from gateway.analytics.refusals import REFUSAL_COLUMNS, REFUSALS_TABLE, StoredRefusal
from gateway.refusals.counts import OTHER, RefusalCounts
from gateway.refusals.refusal import Refusal
from gateway.telemetry.outcomes import RequestOutcome

FLUSH_S = 30.0
"""Time between two flushes."""
RETRY_S = 0.2
"""Time between two flushes at the end of the process."""
MAX_BUFFERED_ROWS = 50_000
"""About 50 MB."""
INSERT_ROWS = 2_000
"""Rows of one insert: the embedded store takes them in a few milliseconds."""
MAX_LABELLED_TENANTS = 100
"""Tenants with a Prometheus label of their own: the first that were refused since the start."""

UNKNOWN = "(unknown)"
"""Label of requests without a key of a tenant."""

_log = logging.getLogger(__name__)


class RefusalLog:
    """The refusals of one gateway, for one event loop. `source`: id of the gateway's journal."""

    def __init__(self, analytics: Analytics, source: str, flush_s: float = FLUSH_S) -> None:
        self._analytics = analytics
        self._source = source
        self._flush_s = flush_s
        self._counts = RefusalCounts()
        self._unstored = 0
        """Requests in `_counts` and `_buffer`."""
        self._buffer: dict[UUID, StoredRefusal] = {}
        """In the order in which they were taken."""
        self._flushing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self._labels: dict[str, str] = {}
        self.refused_total: dict[tuple[str, str], int] = {}
        """Refused requests since the start by tenant label and error code; failed ones are not among them."""
        self.dropped_total = 0
        """Requests whose rows were dropped."""

    @property
    def unstored_requests(self) -> int:
        """Recorded requests that the store has not acknowledged."""
        return self._unstored

    def record(self, refusal: Refusal) -> None:
        """Count a refused request. It neither waits nor raises."""
        if refusal.kind.outcome is not RequestOutcome.FAILED:
            labels = (self._label_of(refusal), refusal.kind.code)
            self.refused_total[labels] = self.refused_total.get(labels, 0) + 1
        if self._counts.add(refusal):
            self._unstored += 1
        else:
            self.dropped_total += 1

    def start(self) -> None:
        """Flush every `flush_s` seconds until `aclose`."""
        assert self._task is None
        self._task = asyncio.create_task(self._run(), name="refusals")

    async def aclose(self, deadline_s: float) -> None:
        """Flush until the store has taken all, for at most `deadline_s` seconds, and end. The rest is lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            async with asyncio.timeout(deadline_s):
                await self.flush()
                while self._buffer:
                    await asyncio.sleep(RETRY_S)
                    await self.flush()
        except TimeoutError:
            pass
        if self._unstored:
            _log.warning("%d refused requests were not stored before the end of the process", self._unstored)

    async def flush(self) -> None:
        """Write all rows to the store, oldest first, as far as it takes them. It does not raise."""
        async with self._flushing:
            self._fill_buffer()
            try:
                while self._buffer:
                    await self._insert(list(islice(self._buffer.values(), INSERT_ROWS)))
            except AnalyticsError as error:
                if not self._failing:
                    _log.warning("refusals cannot be stored: %s", error)
                self._failing = True
            else:
                self._failing = False

    def _fill_buffer(self) -> None:
        """Move the counts to the buffer, within its bound."""
        self._buffer |= {row.refusal_id: row for row in self._counts.take(self._source)}
        excess = max(0, len(self._buffer) - MAX_BUFFERED_ROWS)
        self._forget(list(islice(self._buffer.values(), excess)), dropped=True)

    async def _insert(self, rows: list[StoredRefusal]) -> None:
        """
        Raises:
            AnalyticsError: the rows may have been stored, and stay in the buffer.
        """
        values = [[getattr(row, name) for name in REFUSAL_COLUMNS] for row in rows]
        try:
            await self._analytics.insert(REFUSALS_TABLE, REFUSAL_COLUMNS, values)
        except AnalyticsRefused as error:
            # A repetition is useless, and these rows must not keep others from being stored.
            _log.error("the analytics store rejects refusals: %s", error)
            self._forget(rows, dropped=True)
        else:
            self._forget(rows)

    def _forget(self, rows: list[StoredRefusal], *, dropped: bool = False) -> None:
        for row in rows:
            del self._buffer[row.refusal_id]
            self._unstored -= row.requests
            if dropped:
                self.dropped_total += row.requests

    def _label_of(self, refusal: Refusal) -> str:
        """The tenant's label. Names of tenants have no parentheses."""
        tenant_id = refusal.kind.tenant_id
        if not tenant_id:
            return UNKNOWN
        label = self._labels.get(tenant_id)
        if label is not None:
            return label
        if len(self._labels) >= MAX_LABELLED_TENANTS:
            return OTHER
        return self._labels.setdefault(tenant_id, refusal.tenant_name)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._flush_s)
            try:
                await self.flush()
            except Exception:  # keep the task alive and report any error
                _log.exception("a flush of refusals failed; the next one repeats it")
