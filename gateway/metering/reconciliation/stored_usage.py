"""Reads a source's rows from ClickHouse, for comparison with its journal."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from gateway.analytics import Analytics
from gateway.analytics.sums import DISTINCT_EVENTS, DURING, PARTITIONWISE, TimeRange
from gateway.metering.event import COLUMNS
from gateway.metering.journal.journal_file import Totals
from gateway.metering.sink.intake import EVENTS_TABLE

EventRow = tuple[Any, ...]
"""The values of `COLUMNS`, as from `intake.row_of`."""

_EVENT_ID = COLUMNS.index("event_id")
_SUMS = ", ".join(f"sum(toInt128({name}))" for name in ("prompt_tokens", "cached_tokens", "completion_tokens"))


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """Sequences `first` to `last`."""

    first: int
    last: int


async def stored_rows(
    analytics: Analytics, source: str, sequences: SequenceRange, around: TimeRange
) -> dict[UUID, list[EventRow]]:
    """All rows of a source with these sequences, including copies, by event id. `around` bounds the timestamps."""
    rows = await analytics.query(
        f"SELECT {', '.join(COLUMNS)} FROM {EVENTS_TABLE} WHERE {DURING} AND source = {{source:String}} "
        "AND sequence >= {first:UInt64} AND sequence <= {last:UInt64}",
        {**around.parameters, "source": source, "first": sequences.first, "last": sequences.last},
    )
    found: dict[UUID, list[EventRow]] = {}
    for row in rows:
        found.setdefault(row[_EVENT_ID], []).append(row)
    return found


async def stored_hours(
    analytics: Analytics, source: str, window: TimeRange, last_sequence: int
) -> Mapping[int, Totals]:
    """Sums of a source's distinct events up to a sequence, by hour (Unix milliseconds of its start): the amounts that
    would be billed."""
    rows = await analytics.query(
        f"""
        SELECT toUnixTimestamp(toStartOfHour(occurred_at)) * 1000 AS hour_ms,
            count(), {_SUMS}, sum(toInt128(cost_nanodollars))
        FROM {DISTINCT_EVENTS}
        WHERE {DURING} AND source = {{source:String}} AND sequence <= {{last:UInt64}}
        GROUP BY hour_ms ORDER BY hour_ms
        {PARTITIONWISE}
        """,
        {**window.parameters, "source": source, "last": last_sequence},
    )
    return {int(hour_ms): Totals(*map(int, amounts)) for hour_ms, *amounts in rows}
