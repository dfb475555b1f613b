"""The last step of an event's way: from bytes to rows of ClickHouse, and what is no event to the dead letters."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gateway.analytics import Analytics
from gateway.metering.event import COLUMNS, InvalidEvent, UsageEvent, unix_ms, utc_from_ms

EVENTS_TABLE = "usage_events"
DEAD_LETTERS_TABLE = "usage_dead_letters"
_DEAD_LETTER_COLUMNS = ("topic", "partition", "offset", "reason", "payload", "received_at")
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = datetime(2200, 1, 1, tzinfo=UTC)
_MAX_PREEMPTIONS = 2**32 - 1


class Message(NamedTuple):
    """Bytes at an offset of a partition. `timestamp_ms` is when they were sent there (Unix time), 0 if unknown."""

    offset: int
    body: bytes
    timestamp_ms: int = 0


class Stored(NamedTuple):
    events: int
    dead_letters: int


class Intake:
    """Stores messages that follow one another in a partition; the same messages again are stored once.

    Within the store's memory of tokens that goes for the raw rows too. Beyond it, or where the same events come in
    another batch, copies lie in the table until they are merged, and every reading that bills takes an event once by
    its id (`FINAL`): so a repetition costs space, never money.
    """

    def __init__(self, analytics: Analytics) -> None:
        self._analytics = analytics

    async def store(self, topic: str, partition: int, messages: Sequence[Message]) -> Stored:
        """
        Raises:
            AnalyticsAway: nobody knows what was stored; store the same messages again.
            AnalyticsRefused: the tables are not as this program expects them.
        """
        rows: list[tuple[Any, ...]] = []
        dead: list[tuple[Any, ...]] = []
        for offset, body, timestamp_ms in messages:
            try:
                rows.append(row_of(UsageEvent.from_json(body)))
            except InvalidEvent as error:
                dead.append((topic, partition, offset, str(error), body, _sent_at(timestamp_ms)))
        token = f"{topic}-{partition}-{messages[0].offset}-{messages[-1].offset}"
        if dead:
            await self._analytics.insert(DEAD_LETTERS_TABLE, _DEAD_LETTER_COLUMNS, dead, f"dead-{token}")
        if rows:
            await self._analytics.insert(EVENTS_TABLE, COLUMNS, rows, token)
        return Stored(len(rows), len(dead))


def _sent_at(timestamp_ms: int) -> datetime:
    """When a dead letter came to Kafka, rather than here: so the same message again is the same row. Whoever sent it
    may have said any number."""
    return utc_from_ms(min(max(timestamp_ms, 0), unix_ms(_LATEST)))


def row_of(event: UsageEvent) -> tuple[Any, ...]:
    """The values of `COLUMNS`, each within the range of its column, so that no single event can hold up a batch.

    Raises:
        InvalidEvent
    """
    if event.preemptions > _MAX_PREEMPTIONS:
        raise InvalidEvent(f"preemptions is {event.preemptions}")
    if not _EARLIEST <= event.occurred_at < _LATEST:
        raise InvalidEvent(f"occurred_at is {event.occurred_at.isoformat()}")
    values = [getattr(event, name) for name in COLUMNS]
    values[_RECOMPUTE] = dict(event.recompute_ns)
    return tuple(values)


_RECOMPUTE = COLUMNS.index("recompute_ns")
