"""The journal's SQLite file: its schema and all statements on it."""

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
    advanced_ms INTEGER NOT NULL,
    estimated INTEGER NOT NULL DEFAULT 0
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

_PROGRESS = ", ".join(Progress._fields)
_ADD_ESTIMATED = "ALTER TABLE open_requests ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0"
"""For files of before."""


def _plus(column: str, amount: str) -> str:
    """A saturating sum. On overflow SQLite would produce a float and reject the row, which would block every later
    event."""
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
"""Bound on the disorder of `occurred_ms`: sequences are assigned at the write, shortly after a request's end."""

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
    """A stored event. `body`: from `UsageEvent.to_json`."""

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
    """A request that was running at `advanced_ms` (Unix milliseconds), when its progress was last written."""

    usage_context: UsageContext
    progress: Progress
    advanced_ms: int


@dataclass(frozen=True, slots=True)
class Spent:
    """Usage of a model by a key in a month (`2026-11`, UTC)."""

    month: str
    tenant_id: str
    key_id: str
    model: str
    tokens: int
    nanodollars: int


class JournalFile:
    """One connection. WAL with synchronous=FULL: commits survive a power loss, and torn writes are discarded.

    Used by one thread at a time. Every method raises `sqlite3.Error` if the disk fails.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        target = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        self._connection = sqlite3.connect(target, uri=True, isolation_level=None, check_same_thread=False)
        try:
            # `synchronous` is a property of the connection, not of the file.
            for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "synchronous=FULL"):
                self._connection.execute(f"PRAGMA {pragma}")
            if not read_only:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.executescript(_SCHEMA)
                if not self._has_estimates():
                    self._connection.execute(_ADD_ESTIMATED)
                self._connection.execute("INSERT OR IGNORE INTO journal VALUES (1, ?, 0, 0)", (str(uuid.uuid4()),))
            row = self._connection.execute("SELECT source FROM journal").fetchone()
        except BaseException:
            self._connection.close()
            raise
        self.source: str = row[0]
        """The journal's permanent id, the `source` of its events."""

    def close(self) -> None:
        self._connection.close()

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Returns when all changes since `begin` are on the disk."""
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def open(self, opened: Iterable[OpenRequest]) -> None:
        """Insert open requests, or replace those with the same id."""
        rows = [
            (each.usage_context.request_id, each.usage_context.to_json(), *each.progress, each.advanced_ms)
            for each in opened
        ]
        self._connection.executemany(
            f"INSERT OR REPLACE INTO open_requests (request_id, opening, {_PROGRESS}, advanced_ms) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )

    def advance(self, progress: Iterable[tuple[str, Progress]], now_ms: int) -> None:
        self._connection.executemany(
            "UPDATE open_requests SET prompt_tokens = ?, cached_tokens = ?, completion_tokens = ?, ttft_ms = ?, "
            "estimated = ?, advanced_ms = ? WHERE request_id = ?",
            [(*each, now_ms, request_id) for request_id, each in progress],
        )

    def append(self, first_sequence: int, events: Sequence[UsageEvent]) -> None:
        """Close requests: replace their open entries by their events.

        The events have this journal's source and consecutive sequences from `first_sequence`.
        """
        execute = self._connection.executemany
        execute("DELETE FROM open_requests WHERE request_id = ?", [(event.request_id,) for event in events])
        execute("INSERT INTO events VALUES (?, ?, ?, ?)", [_event_row(event) for event in events])
        execute(_COUNT_HOUR, [(_hour_ms(event), *_amounts(event)) for event in events])
        execute(_COUNT_SPENT, [_spent_row(event) for event in events])
        execute(_COUNT_CREDIT, [_credit_row(event) for event in events])
        self._connection.execute("UPDATE journal SET last_sequence = ?", (first_sequence + len(events) - 1,))

    def acknowledge(self, sequence: int) -> None:
        """Record that all events up to `sequence` are delivered."""
        self._connection.execute("UPDATE journal SET relayed_sequence = max(relayed_sequence, ?)", (sequence,))

    def touch(self) -> None:
        """Dirty a page without changing its content, so that a commit performs a write."""
        for change in (1, -1):
            self._connection.execute("UPDATE journal SET relayed_sequence = relayed_sequence + ?", (change,))

    def follow_credit(self, since_ms: Mapping[str, int]) -> None:
        """Start to sum the cost of each tenant's requests admitted at or after a timestamp (Unix milliseconds), and
        include stored events. A tenant that is followed already keeps its timestamp."""
        known = self.credit_spent()
        for tenant_id, since in since_ms.items():
            if tenant_id not in known:
                spent = min(self._spent_since(tenant_id, since), _MAX_INTEGER)
                self._connection.execute("INSERT INTO credit_spent VALUES (?, ?, ?)", (tenant_id, since, spent))

    def credit_spent(self) -> dict[str, int]:
        """Tenant id -> nanodollars that `follow_credit` sums."""
        return dict(self._connection.execute("SELECT tenant_id, nanodollars FROM credit_spent"))

    def _spent_since(self, tenant_id: str, since_ms: int) -> int:
        """Nanodollars spent since a timestamp. Exact if all events since then are stored. If some are pruned (in
        journals of former versions), an upper bound: the whole months from the timestamp's on."""
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
        """Delete at most `limit` delivered events from before `before_ms`. Their sums are kept."""
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
        # A file of before that is read only has no such column.
        columns = _PROGRESS if self._has_estimates() else _PROGRESS.replace("estimated", "0")
        query = f"SELECT opening, advanced_ms, {columns} FROM open_requests ORDER BY request_id"
        return [
            OpenRequest(
                UsageContext.from_json(opening), Progress(prompt, cached, answer, ttft_ms, bool(estimated)), advanced_ms
            )
            for opening, advanced_ms, prompt, cached, answer, ttft_ms, estimated in self._connection.execute(query)
        ]

    def _has_estimates(self) -> bool:
        columns = self._connection.execute("SELECT name FROM pragma_table_info('open_requests')")
        return ("estimated",) in columns.fetchall()

    def events_after(self, sequence: int, limit: int) -> list[JournalRow]:
        rows = self._connection.execute(
            "SELECT sequence, body FROM events WHERE sequence > ? ORDER BY sequence LIMIT ?", (sequence, limit)
        )
        return [JournalRow(*row) for row in rows]

    def events_during(self, start_ms: int, end_ms: int, after_sequence: int, limit: int) -> list[JournalRow]:
        """As `events_after`, restricted to [start, end)."""
        rows = self._connection.execute(
            "SELECT sequence, body FROM events WHERE sequence > ? AND occurred_ms >= ? AND occurred_ms < ? "
            "ORDER BY sequence LIMIT ?",
            (after_sequence, start_ms, end_ms, limit),
        )
        return [JournalRow(*row) for row in rows]

    def first_sequence(self) -> int:
        """Sequence of the oldest stored event; without one, the next sequence."""
        first: int | None = self._connection.execute("SELECT min(sequence) FROM events").fetchone()[0]
        return self.last_sequence() + 1 if first is None else first

    def event_ids(self, start_ms: int, end_ms: int) -> dict[str, int]:
        """Event id -> sequence of the stored events of [start, end)."""
        rows = self._connection.execute(
            "SELECT event_id, sequence FROM events WHERE occurred_ms >= ? AND occurred_ms < ?", (start_ms, end_ms)
        )
        return dict(rows.fetchall())

    def recorded(self, event_ids: Sequence[str]) -> set[str]:
        """Those of the ids that stored events have. At most 500 ids."""
        places = ", ".join("?" * len(event_ids))
        rows = self._connection.execute(f"SELECT event_id FROM events WHERE event_id IN ({places})", event_ids)
        return {row[0] for row in rows}

    def hours(self, start_ms: int, end_ms: int) -> dict[int, Totals]:
        """Sums by hour (Unix milliseconds of its start), for hours that start in [start, end)."""
        rows = self._connection.execute(
            "SELECT * FROM hours WHERE hour_ms >= ? AND hour_ms < ? ORDER BY hour_ms", (start_ms, end_ms)
        )
        return {hour_ms: Totals(*amounts) for hour_ms, *amounts in rows}

    def hours_up_to(self, sequence: int, start_ms: int, end_ms: int) -> dict[int, Totals]:
        """As `hours`, without the events after a sequence. One statement, so concurrent writes do not affect it."""
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
