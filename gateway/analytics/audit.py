"""Audit of stored events: each must be there exactly once. A source numbers its events 1, 2, 3, ...: a gap is a loss,
and a repeated number is an error.

All results are bounded: the first findings suffice to raise an alarm, to repair and to repeat the query.
"""

from dataclasses import dataclass
from uuid import UUID

from gateway.analytics.store import Analytics
from gateway.analytics.sums import DISTINCT_EVENTS, DURING, PARTITIONWISE, TimeRange, instant

MAX_FINDINGS = 1000
DAY_MS = 86_400_000
NEIGHBOURS_MS = 3_600_000
"""Largest time between events with consecutive numbers. A number within this distance of the window does not count as
missing."""


@dataclass(frozen=True, slots=True)
class SourceHour:
    """Sums of one source's distinct events in the hour from `hour_ms` on."""

    source: str
    hour_ms: int
    events: int
    prompt_tokens: int
    completion_tokens: int
    cost_nanodollars: int


async def source_hours(analytics: Analytics, window: TimeRange) -> list[SourceHour]:
    """Sums by source and hour, ordered, for comparison with the sources' own."""
    rows = await analytics.query(
        f"""
        SELECT source, toUnixTimestamp(toStartOfHour(occurred_at)) * 1000 AS hour_ms, count(),
            sum(toInt128(prompt_tokens)), sum(toInt128(completion_tokens)), sum(toInt128(cost_nanodollars))
        FROM {DISTINCT_EVENTS} WHERE {DURING}
        GROUP BY source, hour_ms ORDER BY source, hour_ms
        {PARTITIONWISE}
        """,
        window.parameters,
    )
    return [SourceHour(row[0], *map(int, row[1:])) for row in rows]


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """Identity and number of a stored event."""

    sequence: int
    event_id: UUID


async def stored_events(
    analytics: Analytics, source: str, window: TimeRange, *, after_sequence: int = 0, limit: int = MAX_FINDINGS
) -> list[StoredEvent]:
    """A page of a source's events in a window, by number, from after `after_sequence` on. The last page is not full.

    Several events may have the same number: `reused_sequences` lists those.
    """
    rows = await analytics.query(
        f"""
        SELECT sequence, min(event_id) FROM usage_events
        WHERE {DURING} AND source = {{source:String}} AND sequence > {{after:UInt64}}
        GROUP BY sequence ORDER BY sequence LIMIT {{limit:UInt32}}
        """,
        {**window.parameters, "source": source, "after": after_sequence, "limit": limit},
    )
    return [StoredEvent(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class SequenceGap:
    """Missing numbers of a source, from `first` to `last`."""

    first: int
    last: int


async def gaps(analytics: Analytics, source: str, window: TimeRange) -> list[SequenceGap]:
    """Gaps below the events of a window, ordered, those before the source's first number included.

    Only the source knows whether events after the last one are missing.
    """
    rows = await analytics.query(
        f"""
        SELECT before + 1, sequence - 1
        FROM
        (
            SELECT sequence, occurred_at,
                lagInFrame(sequence, 1, {{below:UInt64}}) OVER one_back AS before
            FROM
            (
                SELECT sequence, min(event.occurred_at) AS occurred_at FROM usage_events AS event
                WHERE source = {{source:String}}
                    AND event.occurred_at >= {instant("from_ms")} AND event.occurred_at < {instant("to_ms")}
                GROUP BY sequence
            )
            WINDOW one_back AS (ORDER BY sequence ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
        )
        WHERE sequence > before + 1 AND {DURING}
        ORDER BY sequence LIMIT {MAX_FINDINGS}
        """,
        {
            **window.parameters,
            "source": source,
            "from_ms": window.start_ms - NEIGHBOURS_MS,
            "to_ms": window.end_ms + NEIGHBOURS_MS,
            "below": await _last_before(analytics, source, window.start_ms - NEIGHBOURS_MS),
        },
    )
    return [SequenceGap(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Copies:
    """An event that is stored `copies` times. Equal copies are counted once. If they are `differing`, one of them is
    wrong, and which one is counted is arbitrary."""

    event_id: UUID
    sequence: int
    copies: int
    differing: bool


async def copies(analytics: Analytics, source: str, window: TimeRange) -> list[Copies]:
    """Events of a window that are stored several times and not merged yet, ordered by number."""
    rows = await analytics.query(
        f"""
        SELECT event_id, min(sequence) AS sequence, count(), uniqExact(cityHash64(event.*)) > 1
        FROM usage_events AS event WHERE {DURING} AND source = {{source:String}}
        GROUP BY event_id HAVING count() > 1 ORDER BY sequence, event_id LIMIT {MAX_FINDINGS}
        """,
        {**window.parameters, "source": source},
    )
    return [Copies(event_id, sequence, count, bool(differing)) for event_id, sequence, count, differing in rows]


@dataclass(frozen=True, slots=True)
class ReusedSequence:
    """A number that several events have."""

    sequence: int
    event_ids: tuple[UUID, ...]


async def reused_sequences(analytics: Analytics, source: str, window: TimeRange) -> list[ReusedSequence]:
    """Numbers of a source that several events of a window have, ordered."""
    rows = await analytics.query(
        f"""
        SELECT sequence, arraySort(groupUniqArray({MAX_FINDINGS})(event_id)) AS ids
        FROM usage_events WHERE {DURING} AND source = {{source:String}}
        GROUP BY sequence HAVING length(ids) > 1 ORDER BY sequence LIMIT {MAX_FINDINGS}
        """,
        {**window.parameters, "source": source},
    )
    return [ReusedSequence(sequence, tuple(ids)) for sequence, ids in rows]


async def _last_before(analytics: Analytics, source: str, instant_ms: int) -> int:
    """The highest number before an instant; 0: there is none. The last day is searched first."""
    for start_ms in (instant_ms - DAY_MS, 0):
        [(last,)] = await analytics.query(
            f"SELECT max(sequence) FROM usage_events WHERE source = {{source:String}} AND {DURING}",
            {"source": source, **TimeRange(start_ms, instant_ms).parameters},
        )
        if last:
            break
    return int(last)
