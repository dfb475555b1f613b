"""A journal that former versions have written is gone on with: what is pending is delivered, what ran is billed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from gateway.analytics import migrate, open_analytics
from gateway.metering.event import Ending
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import JournalFile
from gateway.metering.journal.usage_context import Progress
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.metering.relay.relay import Relay
from gateway.metering.sink.intake import STORED_COLUMNS, event_of
from tests.gateway.upgrades.former_usage import SOURCE, former_event, occurred_ms, opening
from tests.support.usage_requests import SIGNER, a_usage_context, an_event, journalled, until

LAYOUT = """
CREATE TABLE journal (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    source TEXT NOT NULL,
    last_sequence INTEGER NOT NULL,
    relayed_sequence INTEGER NOT NULL
) STRICT;
CREATE TABLE open_requests (
    request_id TEXT PRIMARY KEY,
    opening BLOB NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    ttft_ms INTEGER,
    advanced_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL UNIQUE,
    occurred_ms INTEGER NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE hours (
    hour_ms INTEGER PRIMARY KEY,
    events INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cost_nanodollars INTEGER NOT NULL
) STRICT;
CREATE TABLE spent (
    month TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    key_id TEXT NOT NULL,
    model TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    nanodollars INTEGER NOT NULL,
    PRIMARY KEY (month, tenant_id, key_id, model)
) STRICT, WITHOUT ROWID;
"""
"""Of the first version."""


def former_journal(path: Path, version: int) -> None:
    """Four events, of which the first has arrived, and a request that ran when the process died."""
    with closing(sqlite3.connect(path)) as file, file:
        file.executescript(LAYOUT)
        file.execute("INSERT INTO journal VALUES (1, ?, 4, 1)", (SOURCE,))
        for sequence in range(1, 5):
            event = former_event(version, sequence)
            row = (sequence, event["event_id"], occurred_ms(sequence), orjson.dumps(event))
            file.execute("INSERT INTO events VALUES (?, ?, ?, ?)", row)
        row = ("cmpl-ran", orjson.dumps(opening(version, "cmpl-ran")), 20, 4, 7, 30, occurred_ms(9))
        file.execute("INSERT INTO open_requests VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        file.execute("INSERT INTO spent VALUES ('2026-03', 'acme', 'acmekey00001', 'large', 444, 10000)")


def test_a_former_journal_is_read_without_a_change(tmp_path: Path) -> None:
    """As `reconcile` and the check of left journals read it: its open requests have no flag of an estimate."""
    path = tmp_path / "journal.db"
    former_journal(path, 3)
    for read_only in (True, False, True):
        with closing(JournalFile(path, read_only=read_only)) as file:
            [ran] = file.open_requests()
            assert ran.progress == Progress(20, 4, 7, 30, estimated=False)


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_what_former_versions_left_is_delivered(version: int, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    former_journal(path, version)
    journal = Journal(path, min_free_bytes=0)
    analytics = open_analytics("chdb://memory")
    await migrate(analytics)
    relay = Relay(journal, AnalyticsDestination(analytics, SIGNER))
    relay.start()
    try:
        assert journal.source == SOURCE
        [spent] = journal.spent_at_start
        assert (spent.tokens, spent.nanodollars) == (444 + 27, 10_000 + 250 * 16 + 125 * 4 + 1000 * 7)
        journal.begin(a_usage_context("cmpl-new"))
        await journal.finish(an_event(1))
        await until(lambda: journal.backlog_events == 0)
        signatures = await analytics.query(
            f"SELECT {', '.join(STORED_COLUMNS)} FROM usage_events FINAL ORDER BY sequence"
        )
        rows = await analytics.query(
            "SELECT sequence, served_model, cost_nanodollars FROM usage_events FINAL ORDER BY 1"
        )
    finally:
        await relay.aclose(1.0)
        await journal.aclose()
        await analytics.aclose()

    [ran] = [event for event in journalled(path) if event.request_id == "cmpl-ran"]
    assert (ran.finish_reason, ran.completion_tokens, ran.cost_nanodollars) == (Ending.INTERRUPTED, 7, 11_500)
    assert ran.routed_model == "large"
    assert [row[0] for row in rows] == [2, 3, 4, 5, 6], "the first had arrived before"
    for *values, signature in signatures:  # signed when sent, whichever version wrote them
        SIGNER.verify(event_of(values), signature)
    assert rows[:4] == [(2, "large", 2_000), (3, "large", 3_000), (4, "large", 4_000), (5, "large", 11_500)]
