"""The journal's SQLite file: what is in it, and the only statements that touch it."""

import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.metering.event import UsageEvent, admitted_ms
from gateway.metering.journal.usage_context import Progress, UsageContext

BUSY_TIMEOUT_MS = 5000
HOUR_MS = 3_600_000
_MAX_INTEGER = 2**63 - 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS journal (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    source TEXT NOT NULL,
    last_sequence INTEGER NOT NULL,
    relayed_sequence INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS open_requests (
    request_id TEXT PRIMARY KEY,
    opening BLOB NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    ttft_ms INTEGER,
    advanced_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS events (
    sequence INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL UNIQUE,
    occurred_ms INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS hours (
    hour_ms INTEGER PRIMARY KEY,
    events INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cost_nanodollars INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS spent (
    month TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    nanodollars INTEGER NOT NULL,
    PRIMARY KEY (month, tenant_id, key_id, model)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS credit_spent (
    tenant_id TEXT PRIMARY KEY,
    since_ms INTEGER NOT NULL,
    nanodollars INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""


def _plus(column: str, amount: str) -> str:
    """A sum that stops at the largest integer: SQLite would make a float of it, refuse the row, and no event of anybody
    could be written any more."""
    return f"{column} = {column} + min({amount}, {_MAX_INTEGER} - {column})"


_COUNT_HOUR = f"""
INSERT INTO hours VALUES (?, 1, ?, ?, ?, ?) ON CONFLICT (hour_ms) DO UPDATE SET
    events = events + 1,
    {_plus("prompt_tokens", "excluded.prompt_tokens")},
    {_plus("cached_tokens", "excluded.cached_tokens")},
    {_plus("completion_tokens", "excluded.completion_tokens")},
    {_plus("cost_nanodollars", "excluded.cost_nanodollars")}
"""

_COUNT_SPENT = f"""
INSERT INTO spent VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (month, tenant_id, key_id, model) DO UPDATE SET
    {_plus("tokens", "excluded.tokens")}, {_plus("nanodollars", "excluded.nanodollars")}
"""

_COUNT_CREDIT = f"""
UPDATE credit_spent SET {_plus("nanodollars", "?")} WHERE tenant_id = ? AND since_ms <= ?
"""

_DISORDER_MS = 60_000
"""Events are numbered as they are written; by the time of their end they are out of order by less than this."""


_HOURS_UP_TO = f"""
SELECT hour_ms, hours.events - coalesce(later.events, 0),
    hours.prompt_tokens - coalesce(later.prompt_tokens, 0),
    hours.cached_tokens - coalesce(later.cached_tokens, 0),
    hours.completion_tokens - coalesce(later.completion_tokens, 0),
    hours.cost_nanodollars - coalesce(later.cost_nanodollars, 0)
FROM hours LEFT JOIN (
    SELECT occurred_ms / {HOUR_MS} * {HOUR_MS} AS hour_ms, count(*) AS events,
        sum(CAST(body AS TEXT) ->> 'prompt_tokens') AS prompt_tokens,
        sum(CAST(body AS TEXT) ->> 'cached_tokens') AS cached_tokens,
        sum(CAST(body AS TEXT) ->> 'completion_tokens') AS completion_tokens,
        sum(CAST(body AS TEXT) ->> 'cost_nanodollars') AS cost_nanodollars
    FROM events WHERE sequence > ? GROUP BY 1
) AS later USING (hour_ms)
WHERE hour_ms >= ? AND hour_ms < ?
"""


class JournalRow(NamedTuple):
    """An event as it was written; `body` is `UsageEvent.to_json`."""

    sequence: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over events."""

    events: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost_nanodollars: int = 0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request that was running when its last progress was written, at `advanced_ms` (Unix time)."""

    usage_context: UsageContext
    progress: Progress
    advanced_ms: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What a key used of a model in a month (`2026-11`, UTC)."""

    month: str
    tenant_id: str
    key_id: str
    model: str
    tokens: int
    nanodollars: int


class JournalFile:
    """One connection. WAL with synchronous=FULL: what is committed outlives a power cut, and a torn write is no write.

    Used by one thread at a time. Every method raises `sqlite3.Error` where the disk does not do as told.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        target = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        self._connection = sqlite3.connect(target, uri=True, isolation_level=None, check_same_thread=False)
        try:
            # synchronous is the connection's, not the file's.
            for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "synchronous=FULL"):
                self._connection.execute(f"PRAGMA {pragma}")
            if not read_only:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.executescript(_SCHEMA)
                self._connection.execute("INSERT OR IGNORE INTO journal VALUES (1, ?, 0, 0)", (str(uuid.uuid4()),))
            row = self._connection.execute("SELECT source FROM journal").fetchone()
        except BaseException:
            self._connection.close()
            raise
        self.source: str = row[0]
        """The journal's own name, for ever: the `source` of its events."""

    def close(self) -> None:
        self._connection.close()

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Returns when all since `begin` is on the disk."""
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def open(self, opened: Iterable[OpenRequest]) -> None:
        """A request that is open already is from now on what this says."""
        rows = [
            (each.usage_context.request_id, each.usage_context.to_json(), *each.progress, each.advanced_ms)
            for each in opened
        ]
        self._connection.executemany("INSERT OR REPLACE INTO open_requests VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def advance(self, progress: Iterable[tuple[str, Progress]], now_ms: int) -> None:
        self._connection.executemany(
            "UPDATE open_requests SET prompt_tokens = ?, cached_tokens = ?, completion_tokens = ?, ttft_ms = ?, "
            "advanced_ms = ? WHERE request_id = ?",
            [(*each, now_ms, request_id) for request_id, each in progress],
        )

    def append(self, first_sequence: int, events: Sequence[UsageEvent]) -> None:
        """Close requests: their events, numbered from `first_sequence` on, in place of what was open of them.

        The events carry this journal's source and their sequences already.
        """
        execute = self._connection.executemany
        execute("DELETE FROM open_requests WHERE request_id = ?", [(event.request_id,) for event in events])
        execute("INSERT INTO events VALUES (?, ?, ?, ?)", [_event_row(event) for event in events])
        execute(_COUNT_HOUR, [(_hour_ms(event), *_amounts(event)) for event in events])
        execute(_COUNT_SPENT, [_spent_row(event) for event in events])
        execute(_COUNT_CREDIT, [_credit_row(event) for event in events])
        self._connection.execute("UPDATE journal SET last_sequence = ?", (first_sequence + len(events) - 1,))

    def acknowledge(self, sequence: int) -> None:
        """All events up to this one have arrived where they go."""
        self._connection.execute("UPDATE journal SET relayed_sequence = max(relayed_sequence, ?)", (sequence,))

    def touch(self) -> None:
        """Dirty a page without changing its content, so that a commit performs a write."""
        for change in (1, -1):
            self._connection.execute("UPDATE journal SET relayed_sequence = relayed_sequence + ?", (change,))

    def follow_credit(self, since_ms: Mapping[str, int]) -> None:
        """Sum from now on what a tenant's requests cost that were admitted at or after an instant (Unix milliseconds),
        the events that are here included. Nothing changes for one that is followed already."""
        known = self.credit_spent()
        for tenant_id, since in since_ms.items():
            if tenant_id not in known:
                spent = min(self._spent_since(tenant_id, since), _MAX_INTEGER)
                self._connection.execute("INSERT INTO credit_spent VALUES (?, ?, ?)", (tenant_id, since, spent))

    def credit_spent(self) -> dict[str, int]:
        """By tenant, what `follow_credit` sums."""
        return dict(self._connection.execute("SELECT tenant_id, nanodollars FROM credit_spent"))

    def _spent_since(self, tenant_id: str, since_ms: int) -> int:
        """Exact where the events since then are still here. Where some have been pruned (of a journal that former
        versions have written), all of the months from that instant's on: no less than was spent."""
        hour_ms = since_ms // HOUR_MS * HOUR_MS
        spent = seen = 0
        for occurred_ms, body in self._connection.execute(
            "SELECT occurred_ms, body FROM events ORDER BY sequence DESC"
        ):
            if occurred_ms < since_ms - _DISORDER_MS:
                return spent
            seen += occurred_ms >= hour_ms
            event = UsageEvent.from_json(body)
            if event.tenant_id == tenant_id and admitted_ms(event) >= since_ms:
                spent += event.cost_nanodollars
        query = "SELECT coalesce(sum(events), 0) FROM hours WHERE hour_ms >= ?"
        if self._connection.execute(query, (hour_ms,)).fetchone()[0] == seen:
            return spent
        query = "SELECT nanodollars FROM spent WHERE tenant_id = ? AND month >= ?"
        months = self._connection.execute(query, (tenant_id, utc_from_ms(since_ms).strftime("%Y-%m")))
        return sum(nanodollars for (nanodollars,) in months)

    def prune(self, before_ms: int, limit: int) -> None:
        """Drop events that have arrived and are older. Their sums stay."""
        self._connection.execute(
            "DELETE FROM events WHERE sequence IN (SELECT sequence FROM events, journal "
            "WHERE sequence <= relayed_sequence AND occurred_ms < ? ORDER BY sequence LIMIT ?)",
            (before_ms, limit),
        )

    def last_sequence(self) -> int:
        return self._number("last_sequence")

    def relayed_sequence(self) -> int:
        return self._number("relayed_sequence")

    def _number(self, column: str) -> int:
        number: int = self._connection.execute(f"SELECT {column} FROM journal").fetchone()[0]
        return number

    def open_requests(self) -> list[OpenRequest]:
        rows = self._connection.execute("SELECT * FROM open_requests ORDER BY request_id").fetchall()
        return [
            OpenRequest(UsageContext.from_json(usage_context), Progress(*progress), advanced_ms)
            for _, usage_context, *progress, advanced_ms in rows
        ]

    def events_after(self, sequence: int, limit: int) -> list[JournalRow]:
        rows = self._connection.execute(
            "SELECT sequence, body FROM events WHERE sequence > ? ORDER BY sequence LIMIT ?", (sequence, limit)
        )
        return [JournalRow(*row) for row in rows]

    def events_during(self, start_ms: int, end_ms: int, after_sequence: int, limit: int) -> list[JournalRow]:
        """As `events_after`, of those of [start, end) alone."""
        rows = self._connection.execute(
            "SELECT sequence, body FROM events WHERE sequence > ? AND occurred_ms >= ? AND occurred_ms < ? "
            "ORDER BY sequence LIMIT ?",
            (after_sequence, start_ms, end_ms, limit),
        )
        return [JournalRow(*row) for row in rows]

    def first_sequence(self) -> int:
        """Of the oldest event that is still here; the one after the last where there is none."""
        first: int | None = self._connection.execute("SELECT min(sequence) FROM events").fetchone()[0]
        return self.last_sequence() + 1 if first is None else first

    def event_ids(self, start_ms: int, end_ms: int) -> dict[str, int]:
        """Event id -> sequence of the events of [start, end) that are still here."""
        rows = self._connection.execute(
            "SELECT event_id, sequence FROM events WHERE occurred_ms >= ? AND occurred_ms < ?", (start_ms, end_ms)
        )
        return dict(rows.fetchall())

    def hours(self, start_ms: int, end_ms: int) -> dict[int, Totals]:
        """Sums by hour (Unix milliseconds of its start), for hours that start in [start, end)."""
        rows = self._connection.execute(
            "SELECT * FROM hours WHERE hour_ms >= ? AND hour_ms < ? ORDER BY hour_ms", (start_ms, end_ms)
        )
        return {hour_ms: Totals(*amounts) for hour_ms, *amounts in rows}

    def hours_up_to(self, sequence: int, start_ms: int, end_ms: int) -> dict[int, Totals]:
        """As `hours`, without the events after a sequence. One statement, so the gateway may write meanwhile."""
        rows = self._connection.execute(_HOURS_UP_TO, (sequence, start_ms, end_ms))
        return {hour_ms: Totals(*amounts) for hour_ms, *amounts in rows}

    def spent(self) -> list[Spent]:
        return [Spent(*row) for row in self._connection.execute("SELECT * FROM spent")]


def _event_row(event: UsageEvent) -> tuple[int, str, int, bytes]:
    return event.sequence, str(event.event_id), unix_ms(event.occurred_at), event.to_json()


def _hour_ms(event: UsageEvent) -> int:
    return unix_ms(event.occurred_at) // HOUR_MS * HOUR_MS


def _amounts(event: UsageEvent) -> tuple[int, int, int, int]:
    return event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.cost_nanodollars


def _credit_row(event: UsageEvent) -> tuple[int, str, int]:
    return event.cost_nanodollars, event.tenant_id, admitted_ms(event)


def _spent_row(event: UsageEvent) -> tuple[str, str, str, str, int, int]:
    month = event.occurred_at.strftime("%Y-%m")
    tokens = event.prompt_tokens + event.completion_tokens
    return month, event.tenant_id, event.key_id, event.served_model, tokens, event.cost_nanodollars
