"""Parses messages and inserts them into ClickHouse. Invalid and unauthenticated events become dead letters,
which are not billed."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gateway.analytics import Analytics
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.metering.event import COLUMNS, VERSIONS, InvalidEvent, UsageEvent
from gateway.metering.signature import Signed, UnauthenticatedEvent

EVENTS_TABLE = "usage_events"
DEAD_LETTERS_TABLE = "usage_dead_letters"
STORED_COLUMNS = (*COLUMNS, "signature")
_DEAD_LETTER_COLUMNS = ("topic", "partition", "offset", "reason", "payload", "received_at", "signature")
_EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
_LATEST = datetime(2200, 1, 1, tzinfo=UTC)
_MAX_PREEMPTIONS = 2**32 - 1


class Message(NamedTuple):
    """A message of a partition. `timestamp_ms`: Unix milliseconds at which it was sent, 0 if unknown. `signature`: ""
    if it has none."""

    offset: int
    body: bytes
    timestamp_ms: int = 0
    signature: str = ""


class Stored(NamedTuple):
    """Numbers of messages by outcome. `unsigned`: part of `events`. `unauthenticated`: stored as dead letters, but not
    counted in `dead_letters`."""

    events: int
    dead_letters: int
    unauthenticated: int
    unsigned: int


class Intake:
    """Stores consecutive messages of a partition. The same messages are stored once.

    Copies of events, as after a repeated batch, stay in the table until merges remove them. Billing queries count each
    event id once (`FINAL`), so a copy costs space, never money. The rollups drop a repeated batch by its token.
    """

    def __init__(self, analytics: Analytics, signed: Signed) -> None:
        self._analytics = analytics
        self._signed = signed

    async def store(self, topic: str, partition: int, messages: Sequence[Message]) -> Stored:
        """
        Raises:
            AnalyticsAway: the outcome is unknown; store the same messages again.
            AnalyticsRefused: the tables have an unexpected schema.
        """
        rows: list[tuple[Any, ...]] = []
        dead: list[tuple[Any, ...]] = []
        unauthenticated = unsigned = 0
        for message in messages:
            try:
                row = self._row(message)
                unsigned += not row[-1]
                rows.append(row)
            except InvalidEvent as error:
                dead.append(_dead_letter(topic, partition, message, str(error)))
            except UnauthenticatedEvent as error:
                unauthenticated += 1
                dead.append(_dead_letter(topic, partition, message, f"not authenticated: {error}"))
        token = f"{topic}-{partition}-{messages[0].offset}-{messages[-1].offset}"
        if dead:
            await self._analytics.insert(DEAD_LETTERS_TABLE, _DEAD_LETTER_COLUMNS, dead, f"dead-{token}")
            # Under another pepper or setting the same messages may become other rows.
            token = f"{token}-without-{len(dead)}"
        if rows:
            await self._analytics.insert(EVENTS_TABLE, STORED_COLUMNS, rows, token)
        return Stored(len(rows), len(dead) - unauthenticated, unauthenticated, unsigned)

    def _row(self, message: Message) -> tuple[Any, ...]:
        """The values of `STORED_COLUMNS`.

        Raises:
            InvalidEvent
            UnauthenticatedEvent
        """
        event = UsageEvent.from_json(message.body)
        return (*row_of(event), self._signed(event, message.signature))


def _dead_letter(topic: str, partition: int, message: Message, reason: str) -> tuple[Any, ...]:
    """The values of `_DEAD_LETTER_COLUMNS`."""
    place = (topic, partition, message.offset)
    return (*place, reason, message.body, _sent_at(message.timestamp_ms), message.signature)


def _sent_at(timestamp_ms: int) -> datetime:
    """Timestamp of a dead letter: when it was sent, so a repeated message becomes the same row. The sender may have
    stated any number."""
    return utc_from_ms(min(max(timestamp_ms, 0), unix_ms(_LATEST)))


def row_of(event: UsageEvent) -> tuple[Any, ...]:
    """The values of `COLUMNS`, each within the range of its column, so no single event can block a batch.

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


def event_of(row: Sequence[Any]) -> UsageEvent:
    """The event whose `COLUMNS` these values are.

    Raises:
        InvalidEvent: an unknown schema version.
    """
    event = UsageEvent(**dict(zip(COLUMNS, row, strict=True)))
    if event.schema_version not in VERSIONS:
        raise InvalidEvent(f"schema_version is {event.schema_version}")
    return event


_RECOMPUTE = COLUMNS.index("recompute_ns")
