"""Reconciles the journal, ClickHouse and invoices.

For each hour: the journal's sums = the sums of the distinct events in ClickHouse + those of events in transit. Events
that the journal still has are compared one by one, so each difference is named. For pruned events the hours' sums and
missing sequences are compared. All other rows of the store, including those of other journals, are verified by their
signatures.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from gateway.analytics import Analytics
from gateway.analytics.sums import TimeRange
from gateway.analytics.usage import totals
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.metering.event import COLUMNS, UsageEvent
from gateway.metering.journal.journal_file import HOUR_MS, JournalFile, JournalRow, Totals
from gateway.metering.reconciliation.gaps import MissingRange, missing_ranges
from gateway.metering.reconciliation.stored_signatures import UnauthenticatedRow, UnsignedSource, check_signatures
from gateway.metering.reconciliation.stored_usage import EventRow, SequenceRange, stored_hours, stored_rows
from gateway.metering.signature import SignaturePolicy
from gateway.metering.sink.intake import row_of

PAGE_EVENTS = 5_000
MAX_FINDINGS = 1_000
"""Bound on findings of each kind: enough for an alert and a first repair."""
SETTLED_AFTER_MS = 5 * 60_000
"""Time in transit, in Kafka for example, after which an event counts as missing."""

Invoiced = Callable[[str], Awaitable[Mapping[str, int]]]
"""Month (`2026-11`) -> tenants with a final invoice -> nanodollars of the usage lines."""


@dataclass(frozen=True, slots=True)
class EventFinding:
    """An event that differs between the journal and ClickHouse. `detail`: the difference."""

    event_id: UUID
    sequence: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HourFinding:
    """An hour whose sums differ: journal != stored + pending."""

    hour_ms: int
    journal: Totals
    stored: Totals
    pending: Totals


@dataclass(frozen=True, slots=True)
class MonthFinding:
    """A month with a final invoice whose usage lines differ from its events' cost."""

    month: str
    tenant_id: str
    used_nanodollars: int
    invoiced_nanodollars: int


@dataclass(slots=True)
class Reconciliation:
    """The findings. Three of them are not drift: `copies` are events with several equal rows, which count once; `late`
    are months with usage that arrived after their invoice and goes to the next one; `former_rows` are unsigned rows
    from before signatures. `unauthenticated`: rows that no gateway signed. `unknown_sources`: sources with such rows
    only."""

    source: str
    window: TimeRange
    journal: Totals = field(default_factory=Totals)
    stored: Totals = field(default_factory=Totals)
    pending: Totals = field(default_factory=Totals)
    missing: list[EventFinding] = field(default_factory=list)
    doubled: list[EventFinding] = field(default_factory=list)
    altered: list[EventFinding] = field(default_factory=list)
    copies: list[EventFinding] = field(default_factory=list)
    missing_ranges: list[MissingRange] = field(default_factory=list)
    hours: list[HourFinding] = field(default_factory=list)
    months: list[MonthFinding] = field(default_factory=list)
    late: list[MonthFinding] = field(default_factory=list)
    unauthenticated: list[UnauthenticatedRow] = field(default_factory=list)
    unknown_sources: list[UnsignedSource] = field(default_factory=list)
    former_rows: int = 0

    @property
    def drift(self) -> bool:
        events = (self.missing, self.doubled, self.altered, self.unauthenticated)
        return any((*events, self.missing_ranges, self.hours, self.months))


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """A consistent view of the journal. Events up to `relayed` are delivered; those before `first` are pruned."""

    source: str
    first: int
    last: int
    relayed: int
    hours: Mapping[int, Totals]


async def reconcile(
    journal_path: Path,
    analytics: Analytics,
    window: TimeRange,
    signatures: SignaturePolicy,
    *,
    now_ms: int,
    invoiced: Invoiced | None = None,
) -> Reconciliation:
    """Compare a journal with the store in all hours that overlap the window, and verify the store's other rows there.
    The gateway may be running.

    Raises:
        sqlite3.Error: there is no such journal, or it cannot be read.
        AnalyticsAway, AnalyticsRefused
    """
    window = window.widened_to(HOUR_MS)
    file = await asyncio.to_thread(lambda: JournalFile(journal_path, read_only=True))
    try:
        snapshot = await asyncio.to_thread(_snapshot, file, window)
        found = Reconciliation(snapshot.source, window)
        under_way = _UnderWay(snapshot.relayed, now_ms - SETTLED_AFTER_MS)
        async for page in _pages(file, window, snapshot.last):
            await _compare_events(analytics, page, under_way, found)
    finally:
        await asyncio.to_thread(file.close)
    await _compare_hours(analytics, snapshot, under_way, found)
    await _verify_others(analytics, snapshot, signatures, found)
    settled = TimeRange(window.start_ms, max(window.start_ms, min(window.end_ms, under_way.settled_before_ms)))
    found.missing_ranges = [
        MissingRange(gap.source, gap.first, min(gap.last, snapshot.first - 1))
        for gap in await missing_ranges(analytics, settled, snapshot.source)
        if gap.first < snapshot.first  # later events were compared one by one
    ]
    if invoiced is not None:
        await _compare_months(analytics, window, invoiced, found)
    return found


@dataclass(slots=True)
class _UnderWay:
    """Decides which events may be in transit, and sums them by hour."""

    relayed_sequence: int
    settled_before_ms: int
    hours: dict[int, Totals] = field(default_factory=dict)

    def may_be(self, event: UsageEvent) -> bool:
        return event.sequence > self.relayed_sequence or unix_ms(event.occurred_at) >= self.settled_before_ms

    def add(self, event: UsageEvent) -> None:
        hour_ms = unix_ms(event.occurred_at) // HOUR_MS * HOUR_MS
        self.hours[hour_ms] = plus(self.hours.get(hour_ms, Totals()), _amounts(event))


def _snapshot(file: JournalFile, window: TimeRange) -> _Snapshot:
    """Runs on a thread. Repeats the reads if the gateway wrote between them."""
    while True:
        last, relayed = file.last_sequence(), file.relayed_sequence()
        hours = file.hours(window.start_ms, window.end_ms)
        if file.last_sequence() == last:
            return _Snapshot(file.source, file.first_sequence(), last, relayed, hours)


async def _pages(file: JournalFile, window: TimeRange, last: int) -> AsyncIterator[list[JournalRow]]:
    after = 0
    while True:
        rows = await asyncio.to_thread(file.events_during, window.start_ms, window.end_ms, after, PAGE_EVENTS)
        rows = [row for row in rows if row.sequence <= last]
        if not rows:
            return
        yield rows
        after = rows[-1].sequence


async def _compare_events(
    analytics: Analytics, page: Sequence[JournalRow], under_way: _UnderWay, found: Reconciliation
) -> None:
    events = await asyncio.to_thread(_events_of, page)
    moments = [unix_ms(event.occurred_at) for event in events]
    around = TimeRange(min(moments) - HOUR_MS, max(moments) + HOUR_MS)
    stored = await stored_rows(analytics, found.source, SequenceRange(page[0].sequence, page[-1].sequence), around)
    await asyncio.to_thread(_compare_page, events, stored, under_way, found)


def _events_of(page: Sequence[JournalRow]) -> list[UsageEvent]:
    """On a thread."""
    return [UsageEvent.from_json(row.body) for row in page]


def _compare_page(
    events: Sequence[UsageEvent], stored: dict[UUID, list[EventRow]], under_way: _UnderWay, found: Reconciliation
) -> None:
    """On a thread."""
    by_sequence = {event.sequence: event for event in events}
    for event in events:
        copies = stored.pop(event.event_id, [])
        if copies:
            _compare_copies(event, copies, found)
        elif under_way.may_be(event):
            under_way.add(event)
        else:
            _note(found.missing, EventFinding(event.event_id, event.sequence))
    for event_id, rows in stored.items():  # rows that the journal does not have
        sequence = rows[0][_SEQUENCE]
        if sequence in by_sequence:
            original = by_sequence[sequence].event_id
            _note(found.doubled, EventFinding(event_id, sequence, f"has the sequence of event {original}"))


def _compare_copies(event: UsageEvent, copies: Sequence[EventRow], found: Reconciliation) -> None:
    expected = row_of(event)
    differing = sorted(
        {name for row in copies for name, is_, should in zip(COLUMNS, row, expected, strict=True) if is_ != should}
    )
    if not differing:
        if len(copies) > 1:
            _note(found.copies, EventFinding(event.event_id, event.sequence, f"{len(copies)} equal rows"))
        return
    _note(found.altered, EventFinding(event.event_id, event.sequence, f"differs in {', '.join(differing)}"))
    if len(copies) > 1:
        _note(found.doubled, EventFinding(event.event_id, event.sequence, f"{len(copies)} rows that differ"))


async def _compare_hours(
    analytics: Analytics, snapshot: _Snapshot, under_way: _UnderWay, found: Reconciliation
) -> None:
    stored = await stored_hours(analytics, snapshot.source, found.window, snapshot.last)
    for hour_ms in sorted({*snapshot.hours, *stored}):
        sides = [each.get(hour_ms, Totals()) for each in (snapshot.hours, stored, under_way.hours)]
        found.journal, found.stored, found.pending = (
            plus(total, side) for total, side in zip((found.journal, found.stored, found.pending), sides, strict=True)
        )
        if sides[0] != plus(sides[1], sides[2]):
            found.hours.append(HourFinding(hour_ms, *sides))


async def _verify_others(
    analytics: Analytics, snapshot: _Snapshot, signatures: SignaturePolicy, found: Reconciliation
) -> None:
    checked = await check_signatures(
        analytics,
        found.window,
        signatures.signer,
        unsigned_until_ms=await signatures.unsigned_until_ms(analytics),
        source=snapshot.source,
        compared=SequenceRange(snapshot.first, snapshot.last),
    )
    found.unauthenticated, found.unknown_sources = checked.rows, checked.unknown_sources
    found.former_rows = checked.former_rows


async def _compare_months(analytics: Analytics, window: TimeRange, invoiced: Invoiced, found: Reconciliation) -> None:
    for month, span in _months(window):
        stated = await invoiced(month)
        if not stated:
            continue
        used: dict[str, int] = {}
        for total in await totals(analytics, span):
            used[total.tenant_id] = used.get(total.tenant_id, 0) + total.sums.cost_nanodollars
        for tenant, charged in sorted(stated.items()):
            finding = MonthFinding(month, tenant, used.get(tenant, 0), charged)
            if finding.used_nanodollars != charged:
                (found.late if finding.used_nanodollars > charged else found.months).append(finding)


def _months(window: TimeRange) -> list[tuple[str, TimeRange]]:
    """The calendar months (UTC) that overlap a window."""
    found = []
    start = utc_from_ms(window.start_ms)
    year, month = start.year, start.month
    while (start_ms := unix_ms(datetime(year, month, 1, tzinfo=UTC))) < window.end_ms:
        name = f"{year}-{month:02}"
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
        found.append((name, TimeRange(start_ms, unix_ms(datetime(year, month, 1, tzinfo=UTC)))))
    return found


def plus(left: Totals, right: Totals) -> Totals:
    return Totals(
        left.events + right.events,
        left.prompt_tokens + right.prompt_tokens,
        left.cached_tokens + right.cached_tokens,
        left.completion_tokens + right.completion_tokens,
        left.cost_nanodollars + right.cost_nanodollars,
    )


def _amounts(event: UsageEvent) -> Totals:
    return Totals(1, event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.cost_nanodollars)


def _note(findings: list[EventFinding], finding: EventFinding) -> None:
    if len(findings) < MAX_FINDINGS:
        findings.append(finding)


_SEQUENCE = COLUMNS.index("sequence")
