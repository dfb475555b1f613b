"""A planted fault is named: what is missing, what is double, what is wrong."""

from uuid import UUID

from gateway.analytics import Analytics
from gateway.analytics.audit import (
    Copies,
    ReusedSequence,
    SequenceGap,
    SourceHour,
    StoredEvent,
    copies,
    gaps,
    reused_sequences,
    source_hours,
    stored_events,
)
from gateway.analytics.sums import TimeRange
from tests.support.usage_samples import DAY_MS, HOUR_MS, MARCH, MARCH_MS, event, store

SECOND_HOUR = TimeRange(MARCH_MS + HOUR_MS, MARCH_MS + 2 * HOUR_MS)


async def test_sources_are_summed_by_the_hour_each_event_once(analytics: Analytics) -> None:
    for _ in range(2):
        await store(
            analytics, [event(1), event(2, MARCH_MS + HOUR_MS - 1), event(3, MARCH_MS + HOUR_MS), event(1, source="b")]
        )
    assert await source_hours(analytics, MARCH) == [
        SourceHour("a", MARCH_MS, 2, 200, 20, 2_000),
        SourceHour("a", MARCH_MS + HOUR_MS, 1, 100, 10, 1_000),
        SourceHour("b", MARCH_MS, 1, 100, 10, 1_000),
    ]
    assert await source_hours(analytics, SECOND_HOUR) == [SourceHour("a", MARCH_MS + HOUR_MS, 1, 100, 10, 1_000)]


async def test_a_whole_sequence_has_no_gap(analytics: Analytics) -> None:
    """Though events of one instant, of neighbouring hours and of other sources are mixed."""
    await store(analytics, [event(n, MARCH_MS + n * HOUR_MS // 4) for n in (3, 1, 2)])
    await store(analytics, [event(n, MARCH_MS + n * HOUR_MS // 4) for n in range(4, 13)])
    await store(analytics, [event(n, MARCH_MS + 99, source="b") for n in range(1, 3)])
    for hour in range(4):
        window = TimeRange(MARCH_MS + hour * HOUR_MS, MARCH_MS + (hour + 1) * HOUR_MS)
        assert await gaps(analytics, "a", window) == []
    assert await gaps(analytics, "b", MARCH) == []
    assert await gaps(analytics, "nobody", MARCH) == []


async def test_what_is_missing_is_named(analytics: Analytics) -> None:
    await store(analytics, [event(n, MARCH_MS + n) for n in range(1, 30) if n not in {1, 2, 7, 11, 12, 13}])
    assert await gaps(analytics, "a", MARCH) == [SequenceGap(1, 2), SequenceGap(7, 7), SequenceGap(11, 13)]


async def test_a_gap_over_a_silence_is_named_once(analytics: Analytics) -> None:
    """By the window that holds the first event after it, however long ago the last one before it was."""
    for silence_ms in (2 * HOUR_MS, 40 * DAY_MS):
        source = "ab"[silence_ms > DAY_MS]
        end_ms = MARCH_MS + silence_ms
        await store(analytics, [event(n, MARCH_MS, source=source) for n in (1, 2)])
        await store(analytics, [event(n, end_ms, source=source) for n in (5, 6)])
        assert await gaps(analytics, source, TimeRange(end_ms, end_ms + HOUR_MS)) == [SequenceGap(3, 4)]
        assert await gaps(analytics, source, TimeRange(end_ms - HOUR_MS, end_ms)) == []
        assert await gaps(analytics, source, TimeRange(end_ms + 1, end_ms + HOUR_MS)) == []


async def test_events_are_listed_by_number(analytics: Analytics) -> None:
    await store(analytics, [event(n, MARCH_MS + n * 60_000) for n in range(1, 8)])
    await store(analytics, [event(3, MARCH_MS + 3 * 60_000), event(4, source="b")])
    first = await stored_events(analytics, "a", MARCH, limit=4)
    rest = await stored_events(analytics, "a", MARCH, after_sequence=first[-1].sequence, limit=4)
    assert first + rest == [StoredEvent(n, event(n)["event_id"]) for n in range(1, 8)]


async def test_copies_are_named_and_told_from_contradictions(analytics: Analytics) -> None:
    await store(analytics, [event(1), event(2), event(3), event(4)])
    await store(analytics, [event(2), event(3, cost_nanodollars=2_000), event(4, recompute_ns={})])
    await store(analytics, [event(2)])
    assert await copies(analytics, "a", MARCH) == [
        Copies(event(2)["event_id"], 2, 3, differing=False),
        Copies(event(3)["event_id"], 3, 2, differing=True),
        Copies(event(4)["event_id"], 4, 2, differing=True),
    ]
    assert await copies(analytics, "a", SECOND_HOUR) == []


async def test_a_number_given_twice_is_named(analytics: Analytics) -> None:
    await store(analytics, [event(1), event(2), event(2, event_id=UUID(int=5)), event(1, source="b")])
    await store(analytics, [event(1)])
    reused = ReusedSequence(2, tuple(sorted([UUID(int=5), event(2)["event_id"]], key=str)))
    [found] = await reused_sequences(analytics, "a", MARCH)
    assert (found.sequence, set(found.event_ids)) == (reused.sequence, set(reused.event_ids))
