"""Finds rows of the store that no gateway signed: forged or changed usage."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import orjson

from gateway.analytics import Analytics
from gateway.analytics.sums import DURING, TimeRange, instant
from gateway.common.timestamps import unix_ms
from gateway.metering.event import COLUMNS, InvalidEvent
from gateway.metering.journal.journal_file import HOUR_MS
from gateway.metering.reconciliation.stored_usage import EventRow, SequenceRange
from gateway.metering.signature import EventSigner, UnauthenticatedEvent
from gateway.metering.sink.intake import EVENTS_TABLE, STORED_COLUMNS, event_of

PAGE_ROWS = 5_000
MAX_FINDINGS = 1_000


@dataclass(frozen=True, slots=True)
class UnauthenticatedRow:
    """A row without a valid signature. `detail`: the reason. The other fields are the row's own, unverified values."""

    event_id: UUID
    source: str
    sequence: int
    tenant_id: str
    cost_nanodollars: int
    detail: str


@dataclass(frozen=True, slots=True)
class UnsignedSource:
    """Rows of a source without a valid signature, and their cost."""

    source: str
    rows: int
    cost_nanodollars: int


@dataclass(slots=True)
class _OfSource:
    signed: int = 0
    former: int = 0
    unauthenticated: int = 0
    unauthenticated_nanodollars: int = 0


@dataclass(slots=True)
class SignatureCheck:
    """The findings. `rows`: the first `MAX_FINDINGS`. `sources`: sums over all rows."""

    rows: list[UnauthenticatedRow] = field(default_factory=list)
    sources: dict[str, _OfSource] = field(default_factory=dict)

    @property
    def unknown_sources(self) -> list[UnsignedSource]:
        """Sources without any signed or former row."""
        return [
            UnsignedSource(source, sums.unauthenticated, sums.unauthenticated_nanodollars)
            for source, sums in sorted(self.sources.items())
            if sums.unauthenticated and not sums.signed and not sums.former
        ]

    @property
    def former_rows(self) -> int:
        """Number of unsigned rows from before signatures, which cannot be verified."""
        return sum(sums.former for sums in self.sources.values())


async def check_signatures(
    analytics: Analytics,
    window: TimeRange,
    signer: EventSigner,
    *,
    unsigned_until_ms: int,
    source: str,
    compared: SequenceRange,
) -> SignatureCheck:
    """Verify every row of the window, including copies, except those of `source` that are `compared` with its journal.

    Raises:
        AnalyticsAway, AnalyticsRefused
    """
    found = SignatureCheck()

    def check(rows: Sequence[EventRow]) -> None:
        for row in rows:
            _check_row(row, signer, unsigned_until_ms, found)

    async for page in _pages(analytics, window):
        others = [
            row for row in page if row[_SOURCE] != source or not compared.first <= row[_SEQUENCE] <= compared.last
        ]
        await asyncio.to_thread(check, others)
    return found


def _check_row(row: EventRow, signer: EventSigner, unsigned_until_ms: int, found: SignatureCheck) -> None:
    *values, signature = row
    sums = found.sources.setdefault(row[_SOURCE], _OfSource())
    try:
        event = event_of(values)
        if not signature and unix_ms(event.occurred_at) < unsigned_until_ms:
            sums.former += 1
            return
        signer.verify(event, signature)
    except (UnauthenticatedEvent, InvalidEvent, orjson.JSONEncodeError) as error:
        sums.unauthenticated += 1
        sums.unauthenticated_nanodollars += row[_COST]
        if len(found.rows) < MAX_FINDINGS:
            claimed = (row[_EVENT_ID], row[_SOURCE], row[_SEQUENCE], row[_TENANT], row[_COST])
            found.rows.append(UnauthenticatedRow(*claimed, str(error)))
    else:
        sums.signed += 1


async def _pages(analytics: Analytics, window: TimeRange) -> AsyncIterator[list[EventRow]]:
    """Rows in the order of the table's key, hour by hour. All copies of an event are on one page."""
    hours = await analytics.query(
        f"SELECT DISTINCT toUnixTimestamp(toStartOfHour(occurred_at)) * 1000 AS hour_ms FROM {EVENTS_TABLE} "
        f"WHERE {DURING} ORDER BY hour_ms",
        window.parameters,
    )
    for (hour_ms,) in hours:
        hour = TimeRange(max(window.start_ms, int(hour_ms)), min(window.end_ms, int(hour_ms) + HOUR_MS))
        after, parameters = "", {**hour.parameters, "hour_ms": int(hour_ms), "limit": PAGE_ROWS}
        while True:
            rows = await analytics.query(
                f"SELECT {', '.join(STORED_COLUMNS)} FROM {EVENTS_TABLE} "
                f"WHERE toStartOfHour(occurred_at) = {instant('hour_ms')} AND {DURING} {after} "
                "ORDER BY tenant_id, event_id LIMIT {limit:UInt32} WITH TIES",
                parameters,
            )
            if rows:
                yield rows
            if len(rows) < PAGE_ROWS:
                break
            after = "AND (tenant_id, event_id) > ({tenant_id:String}, {event_id:UUID})"
            parameters |= {"tenant_id": rows[-1][_TENANT], "event_id": rows[-1][_EVENT_ID]}


_EVENT_ID, _SOURCE, _SEQUENCE, _TENANT, _COST = (
    COLUMNS.index(name) for name in ("event_id", "source", "sequence", "tenant_id", "cost_nanodollars")
)
