"""What an operator sees of usage on its way."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.metering.destination import DestinationAway
from gateway.metering.journal_file import JournalRow
from gateway.metering.relay import Relay
from gateway.telemetry.usage_metrics import UsageCollector
from tests.gateway.metering.test_journal import an_ending, an_opening, journal_at

pytestmark = pytest.mark.anyio


class Shelf:
    """A destination that can be away."""

    linger_ms = 0

    def __init__(self) -> None:
        self.away = False

    async def deliver(self, rows: Sequence[JournalRow]) -> None:
        if self.away:
            raise DestinationAway("gone")

    async def aclose(self) -> None:
        pass


async def until(registry: CollectorRegistry, **wanted: float) -> None:
    async with asyncio.timeout(10):
        while any(registry.get_sample_value(f"turnpike_{name}") != value for name, value in wanted.items()):
            await asyncio.sleep(0.01)


async def test_the_way_of_an_event_can_be_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.metering.journal.RETRY_S", 0.01)
    shelf = Shelf()
    async with journal_at(tmp_path / "journal.db") as journal:
        relay = Relay(journal, shelf)
        registry = CollectorRegistry()
        registry.register(UsageCollector(journal, relay))
        relay.start()
        opening = an_opening("r1")
        journal.begin(opening)
        await journal.finish(an_ending(opening), an_ending(opening))
        await until(registry, journal_events_total=1, journal_backlog_events=0, relay_delivered_events_total=1)
        assert registry.get_sample_value("turnpike_journal_writable") == 1
        assert (registry.get_sample_value("turnpike_journal_commit_seconds_total") or 0) > 0

        shelf.away = True
        opening = an_opening("r2")
        journal.begin(opening)
        await journal.finish(an_ending(opening), an_ending(opening))
        async with asyncio.timeout(10):
            while not registry.get_sample_value("turnpike_relay_failing_seconds"):
                await asyncio.sleep(0.01)
        assert registry.get_sample_value("turnpike_journal_backlog_events") == 1

        def fail() -> None:
            raise sqlite3.OperationalError("disk I/O error")

        commit = journal._file.commit
        monkeypatch.setattr(journal._file, "commit", fail)
        journal.begin(an_opening("r3"))
        await until(registry, journal_writable=0)
        assert (registry.get_sample_value("turnpike_journal_failures_total") or 0) >= 1
        monkeypatch.setattr(journal._file, "commit", commit)
        await until(registry, journal_writable=1)
        await relay.aclose(0.01)
