"""Drift between the journal and the store shows in the metrics, and what is under way is none."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from gateway.analytics import Analytics, AnalyticsAway, open_analytics
from gateway.app import create_app
from gateway.common.ids import new_event_id
from gateway.config.settings import Settings
from gateway.metering.event import UsageEvent
from gateway.metering.journal.journal_file import HOUR_MS, JournalFile, Totals
from gateway.metering.metrics import BooksCollector
from gateway.metering.reconciliation.reconciliation import SETTLED_AFTER_MS
from gateway.metering.reconciliation.reconciliation_monitor import DAY_MS, Drift, ReconciliationMonitor
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.process.opening import open_books
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import FakeAuthenticator
from tests.support.services import services_with
from tests.support.usage_requests import (
    NOW_MS,
    SIGNATURES,
    SIGNER,
    delete,
    finish,
    journal_at,
    journalled,
    put,
    rows_of,
    until,
)

EVENTS = 12
LATER_MS = NOW_MS + HOUR_MS


@pytest.fixture
async def path(tmp_path: Path, analytics: Analytics) -> Path:
    """A journal all of whose events have arrived."""
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await finish(journal, EVENTS)
        await AnalyticsDestination(analytics, SIGNER).deliver(rows_of(journalled(path)))
        journal.acknowledge(EVENTS)
    return path


@pytest.fixture
async def watch(path: Path, analytics: Analytics) -> ReconciliationMonitor:
    """It has seen once what was relayed."""
    watch = ReconciliationMonitor(path, analytics, SIGNATURES, every_s=300)
    await watch.check(LATER_MS)
    assert watch.checked_s == 0
    return watch


async def test_what_arrived_agrees(watch: ReconciliationMonitor) -> None:
    await watch.check(LATER_MS)
    assert watch.drift == Drift()
    assert watch.checked_s > 0


async def test_drift_is_counted_by_its_kind_and_gone_when_it_is_mended(
    watch: ReconciliationMonitor, path: Path, analytics: Analytics
) -> None:
    events = journalled(path)
    double = replace(events[2], event_id=new_event_id())
    dearer = replace(events[3], cost_nanodollars=events[3].cost_nanodollars + 1)
    await delete(analytics, events[3], *events[5:8])
    await put(analytics, double)
    await put(analytics, dearer)
    await watch.check(LATER_MS)
    assert watch.drift == Drift(hours=1, missing=3, doubled=1, altered=1)
    registry = CollectorRegistry()
    registry.register(BooksCollector(watch))
    value = registry.get_sample_value
    name = "turnpike_reconciliation_drift_events"
    assert [value(name, {"kind": kind}) for kind in ("missing", "doubled", "altered")] == [3, 1, 1]
    assert value("turnpike_reconciliation_drift_hours") == 1
    assert value("turnpike_reconciliation_checked_timestamp_seconds") == watch.checked_s
    await delete(analytics, double, dearer)
    for event in (events[3], *events[5:8]):
        await put(analytics, event)
    await watch.check(LATER_MS)
    assert watch.drift == Drift()


async def test_what_was_relayed_since_the_last_check_has_its_time(watch: ReconciliationMonitor, path: Path) -> None:
    async with journal_at(path) as journal:
        await finish(journal, 3)
        journal.acknowledge(EVENTS + 3)  # it is in Kafka
    await watch.check(LATER_MS)
    assert watch.drift == Drift()
    await watch.check(LATER_MS)
    assert watch.drift == Drift(hours=1, missing=3)


async def test_the_same_drift_is_taken_apart_once(
    watch: ReconciliationMonitor, path: Path, analytics: Analytics, monkeypatch: pytest.MonkeyPatch
) -> None:
    await delete(analytics, journalled(path)[4])
    await watch.check(LATER_MS)
    monkeypatch.setattr("gateway.metering.reconciliation.reconciliation_monitor.reconcile", None)
    await watch.check(LATER_MS)
    assert watch.drift == Drift(hours=1, missing=1)


async def test_the_sums_of_a_day_are_corrected_when_it_is_over(
    watch: ReconciliationMonitor, path: Path, analytics: Analytics
) -> None:
    await put(analytics, journalled(path)[0])  # in another batch, so the sums count it again
    of_the_day = "SELECT sum(events) FROM usage_by_day"
    day_ms = NOW_MS // DAY_MS * DAY_MS
    await watch.check(day_ms + DAY_MS)
    assert await analytics.query(of_the_day) == [(EVENTS + 1,)], "events of it may still be on their way"
    await watch.check(day_ms + DAY_MS + SETTLED_AFTER_MS)
    assert await analytics.query(of_the_day) == [(EVENTS,)]


class Away:
    """An `Analytics` that does not answer."""

    async def query(self, sql: str, parameters: object = None) -> list[tuple[object, ...]]:
        raise AnalyticsAway("gone")


async def test_a_store_that_is_away_is_counted_and_looked_for_again(path: Path) -> None:
    watch = ReconciliationMonitor(path, Away(), SIGNATURES, every_s=0.01)  # type: ignore[arg-type]
    watch.start()
    await until(lambda: watch.failures_total > 1)
    await watch.aclose()
    assert (watch.drift, watch.checked_s) == (Drift(), 0)


def test_the_application_watches_its_books(tmp_path: Path) -> None:
    memory = open_analytics("chdb://memory")
    services = services_with(tmp_path, FakeEngine(), FakeAuthenticator(), analytics=memory)
    watch = ReconciliationMonitor(services.journal.path, memory, SIGNATURES, every_s=0.01)
    app = create_app(Settings(data_dir=tmp_path), replace(services, books=watch))
    with TestClient(app):
        deadline = time.monotonic() + 60
        while not watch.checked_s:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert watch.failures_total == 0


@pytest.mark.parametrize(
    ("kafka_url", "analytics_url", "compares"),
    [
        (None, "chdb:///var/lib/turnpike/analytics", True),
        (None, "http://clickhouse:8123/usage", True),
        ("kafka://kafka:9092", "http://clickhouse:8123/usage", True),
        ("kafka://kafka:9092", "chdb:///var/lib/turnpike/analytics", False),
    ],
)
async def test_books_are_compared_with_a_store_that_usage_can_reach(
    tmp_path: Path, kafka_url: str | None, analytics_url: str, compares: bool
) -> None:
    settings = Settings(data_dir=tmp_path, kafka_url=kafka_url, analytics_url=analytics_url)  # type: ignore[arg-type]
    assert (open_books(settings, Away(), SIGNATURES) is not None) is compares  # type: ignore[arg-type]


def totals(events: list[UsageEvent]) -> Totals:
    amounts = [
        (1, event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.cost_nanodollars)
        for event in events
    ]
    return Totals(*map(sum, zip(*amounts, strict=True)))


async def test_the_journals_sums_can_be_cut_at_any_sequence(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await finish(journal, 5)
        await finish(journal, 5, ended_ms=NOW_MS + HOUR_MS)
    events, hour_ms = journalled(path), NOW_MS // HOUR_MS * HOUR_MS
    file = JournalFile(path, read_only=True)
    for cut, (first, second) in {10: (5, 5), 7: (5, 2), 3: (3, 0)}.items():
        sums = file.hours_up_to(cut, hour_ms, hour_ms + 2 * HOUR_MS)
        expected = [totals(events[:first]), totals(events[5 : 5 + second]) if second else Totals()]
        assert [sums[hour_ms], sums[hour_ms + HOUR_MS]] == expected
    assert list(file.hours_up_to(10, hour_ms, hour_ms + 1)) == [hour_ms]
    file.close()
