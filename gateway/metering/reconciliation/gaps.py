"""Gaps in the sequences of a source's events in ClickHouse."""

from dataclasses import dataclass

from gateway.analytics import Analytics
from gateway.analytics.audit import gaps
from gateway.analytics.sums import DURING, TimeRange

MAX_NUMBERS = 10_000
"""Bound on sequences of one gap that are looked up at other times; the rest of the gap counts as missing."""


@dataclass(frozen=True, slots=True, order=True)
class MissingRange:
    """Sequences `first` to `last` of a source."""

    source: str
    first: int
    last: int

    @property
    def events(self) -> int:
        return self.last - self.first + 1


async def missing_ranges(analytics: Analytics, window: TimeRange, source: str | None = None) -> list[MissingRange]:
    """Missing sequences of `source`, or of every source with events in the window, up to its newest event there,
    in order.

    A sequence is missing only if no event at any time has it: an interrupted request's event gets its sequence at the
    gateway's next start. Events in transit count as missing, so the window should end before them.
    """
    sources = [source] if source is not None else await _sources(analytics, window)
    found: list[MissingRange] = []
    for each in sources:
        for gap in await gaps(analytics, each, window):
            found += await _confirmed(analytics, MissingRange(each, gap.first, gap.last))
    return found


async def _sources(analytics: Analytics, window: TimeRange) -> list[str]:
    rows = await analytics.query(
        f"SELECT DISTINCT source FROM usage_events WHERE {DURING} ORDER BY source", window.parameters
    )
    return [source for (source,) in rows]


async def _confirmed(analytics: Analytics, gap: MissingRange) -> list[MissingRange]:
    """The parts of a gap that no event at another time fills."""
    rows = await analytics.query(
        "SELECT DISTINCT sequence FROM usage_events WHERE source = {source:String} "
        "AND sequence >= {first:UInt64} AND sequence <= {last:UInt64} ORDER BY sequence LIMIT {limit:UInt32}",
        {"source": gap.source, "first": gap.first, "last": gap.last, "limit": MAX_NUMBERS},
    )
    return ranges_without(gap, [sequence for (sequence,) in rows])


def ranges_without(gap: MissingRange, present: list[int]) -> list[MissingRange]:
    """`gap` without the ascending numbers `present`, all of which are in it."""
    left: list[MissingRange] = []
    first = gap.first
    for sequence in [*present, gap.last + 1]:
        if sequence > first:
            left.append(MissingRange(gap.source, first, sequence - 1))
        first = sequence + 1
    return left
