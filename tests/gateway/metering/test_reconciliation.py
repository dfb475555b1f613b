"""Reconciliation finds and names every difference between the journal and the store."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest
from typer.testing import CliRunner

from gateway.analytics import Analytics
from gateway.analytics.sums import TimeRange
from gateway.common.ids import new_event_id
from gateway.common.timestamps import utc_from_ms
from gateway.management.cli import app
from gateway.metering.event import UsageEvent
from gateway.metering.journal.journal_file import HOUR_MS, JournalFile
from gateway.metering.reconciliation.gaps import MissingRange, missing_ranges, ranges_without
from gateway.metering.reconciliation.reconciliation import Reconciliation, reconcile
from gateway.metering.reconciliation.stored_signatures import UnsignedSource
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.metering.signature import SignaturePolicy
from gateway.metering.sink.intake import EVENTS_TABLE, STORED_COLUMNS, row_of
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.command_line import ok
from tests.support.usage_requests import (
    NOW_MS,
    SIGNATURES,
    SIGNER,
    an_event,
    delete,
    finish,
    journal_at,
    journalled,
    put,
    rows_of,
)

EVENTS = 12
LATER_MS = NOW_MS + 2 * HOUR_MS
WINDOW = TimeRange(NOW_MS, NOW_MS + 1)
"""The hour of all events."""


@pytest.fixture
async def path(tmp_path: Path, analytics: Analytics) -> Path:
    """A journal all of whose events have arrived."""
    path = tmp_path / "journal.db"
    async with journal_at(path) as journal:
        await finish(journal, EVENTS)
        await AnalyticsDestination(analytics, SIGNER).deliver(rows_of(journalled(path)))
        journal.acknowledge(EVENTS)
    return path


async def found_in(path: Path, analytics: Analytics, now_ms: int = LATER_MS) -> Reconciliation:
    return await reconcile(path, analytics, WINDOW, SIGNATURES, now_ms=now_ms)


async def test_what_arrived_agrees(path: Path, analytics: Analytics) -> None:
    found = await found_in(path, analytics)
    assert not found.drift
    assert (found.journal, found.journal.events) == (found.stored, EVENTS)
    assert found.journal.cost_nanodollars == sum(event.cost_nanodollars for event in journalled(path))


async def test_a_deleted_event_is_named(path: Path, analytics: Analytics) -> None:
    gone = journalled(path)[4]
    await delete(analytics, gone)
    found = await found_in(path, analytics)
    assert [(each.event_id, each.sequence) for each in found.missing] == [(gone.event_id, gone.sequence)]
    assert found.drift
    assert found.hours[0].journal.events - found.hours[0].stored.events == 1
    assert [*found.doubled, *found.altered, *found.copies, *found.missing_ranges] == []


async def test_an_event_under_a_second_id_is_named_with_the_first(path: Path, analytics: Analytics) -> None:
    original = journalled(path)[4]
    double = replace(original, event_id=new_event_id())
    await put(analytics, double)
    found = await found_in(path, analytics)
    (finding,) = found.doubled
    assert (finding.event_id, finding.sequence) == (double.event_id, original.sequence)
    assert str(original.event_id) in finding.detail
    assert found.drift
    assert found.hours


async def test_an_equal_copy_is_named_and_counted_once(path: Path, analytics: Analytics) -> None:
    copied = journalled(path)[4]
    await analytics.command("SYSTEM STOP MERGES usage_events")
    await put(analytics, copied)
    found = await found_in(path, analytics)
    assert [each.event_id for each in found.copies] == [copied.event_id]
    assert not found.drift
    assert found.stored == found.journal


@pytest.mark.parametrize(
    "change",
    [{"cost_nanodollars": 1}, {"tenant_id": "other"}, {"recompute_ns": {"premium": 1}}, {"key_id": "another"}],
)
async def test_an_altered_event_has_its_columns(path: Path, analytics: Analytics, change: Mapping[str, object]) -> None:
    """Also where no sum over the hour tells."""
    original = journalled(path)[4]
    await delete(analytics, original)
    await put(analytics, replace(original, **change))  # type: ignore[arg-type]
    found = await found_in(path, analytics)
    (finding,) = found.altered
    assert (finding.event_id, finding.sequence) == (original.event_id, original.sequence)
    assert finding.detail == f"differs in {next(iter(change))}"
    assert found.drift


async def test_a_copy_that_differs_is_both_doubled_and_altered(path: Path, analytics: Analytics) -> None:
    original = journalled(path)[4]
    await put(analytics, replace(original, tenant_id="other"))
    found = await found_in(path, analytics)
    assert [each.event_id for each in found.doubled] == [original.event_id]
    assert [each.detail for each in found.altered] == ["differs in tenant_id"]
    assert found.hours, "it is counted for both tenants"


async def test_what_is_under_way_is_pending(path: Path, analytics: Analytics) -> None:
    async with journal_at(path) as journal:
        await finish(journal, 3)
    found = await found_in(path, analytics)
    assert not found.drift
    assert (found.pending.events, found.journal.events, found.stored.events) == (3, EVENTS + 3, EVENTS)


async def test_what_was_relayed_is_pending_for_a_while_only(path: Path, analytics: Analytics) -> None:
    async with journal_at(path) as journal:
        await finish(journal, 3)
        journal.acknowledge(EVENTS + 3)  # it is in Kafka
    assert not (await found_in(path, analytics, now_ms=NOW_MS + 1000)).drift
    found = await found_in(path, analytics)
    assert [each.sequence for each in found.missing] == [EVENTS + 1, EVENTS + 2, EVENTS + 3]


async def test_what_the_journal_no_longer_has_is_named_by_its_numbers(path: Path, analytics: Analytics) -> None:
    events = journalled(path)
    await delete(analytics, events[0], events[3], events[4])
    file = JournalFile(path)
    file.prune(LATER_MS, 6)
    file.close()
    found = await found_in(path, analytics)
    assert [(gap.first, gap.last) for gap in found.missing_ranges] == [(1, 1), (4, 5)]
    assert found.hours[0].journal.events - found.hours[0].stored.events == 3
    assert found.drift
    assert not found.missing


async def test_a_closed_month_is_held_against_its_invoices(path: Path, analytics: Analytics) -> None:
    events = journalled(path)
    used = dict.fromkeys(("t0", "t1", "t2"), 0)
    for event in events:
        used[event.tenant_id] += event.cost_nanodollars
    month = events[0].occurred_at.strftime("%Y-%m")

    async def invoiced(of: str) -> Mapping[str, int]:
        assert of == month
        return {"t0": used["t0"], "t1": used["t1"] + 1, "t2": 0}

    found = await reconcile(path, analytics, WINDOW, SIGNATURES, now_ms=LATER_MS, invoiced=invoiced)
    (too_much,), (late,) = found.months, found.late
    assert (too_much.month, too_much.tenant_id, too_much.invoiced_nanodollars) == (month, "t1", used["t1"] + 1)
    assert too_much.used_nanodollars == used["t1"]
    assert found.drift
    assert (late.tenant_id, late.used_nanodollars, late.invoiced_nanodollars) == ("t2", used["t2"], 0)

    async def without_t1(_: str) -> Mapping[str, int]:
        return {"t0": used["t0"], "t2": 0}

    found = await reconcile(path, analytics, WINDOW, SIGNATURES, now_ms=LATER_MS, invoiced=without_t1)
    assert not found.drift, "what came late is for the next invoice"
    assert found.late == [late]

    async def open_month(_: str) -> Mapping[str, int]:
        return {}

    assert not (await reconcile(path, analytics, WINDOW, SIGNATURES, now_ms=LATER_MS, invoiced=open_month)).drift


async def test_gaps_of_every_source_are_found(analytics: Analytics, path: Path) -> None:
    gone = journalled(path)[3:5]
    await delete(analytics, *gone)
    window = TimeRange(NOW_MS - HOUR_MS, LATER_MS)
    assert await missing_ranges(analytics, window) == [MissingRange(gone[0].source, 4, 5)]
    long_ago = replace(gone[0], occurred_at=gone[0].occurred_at - timedelta(days=3))
    await put(analytics, long_ago)  # as of a request that was interrupted before a long pause
    assert await missing_ranges(analytics, window) == [MissingRange(gone[0].source, 5, 5)]


async def test_what_is_left_of_a_gap() -> None:
    gap = MissingRange("s", 5, 9)
    assert ranges_without(gap, []) == [gap]
    assert ranges_without(gap, [5, 9]) == [MissingRange("s", 6, 8)]
    assert ranges_without(gap, [7]) == [MissingRange("s", 5, 6), MissingRange("s", 8, 9)]
    assert ranges_without(gap, [5, 6, 7, 8, 9]) == []


async def test_the_command_says_what_differs_and_fails(
    path: Path,
    analytics: Analytics,
    clickhouse_url: str,
    clickhouse_server: ClickHouseServer,
    no_settings: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TURNPIKE_JOURNAL_PATH", str(path))
    monkeypatch.setenv("TURNPIKE_ANALYTICS_URL", clickhouse_url)
    events = journalled(path)
    day = [
        "--from",
        events[0].occurred_at.strftime("%Y-%m-%d"),
        "--to",
        f"{events[-1].occurred_at + timedelta(days=30):%Y-%m-%d}",
    ]

    async def turnpike(*arguments: str) -> tuple[int, str]:
        result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(app, ["reconcile", *day, *arguments]))
        assert quote(clickhouse_server.password, safe="") not in result.output
        return result.exit_code, result.output

    await anyio.to_thread.run_sync(lambda: ok("db", "upgrade"))
    code, output = await turnpike()
    assert (code, output.splitlines()[-1]) == (0, "they agree")
    await delete(analytics, events[7])
    code, output = await turnpike()
    assert (code, output.splitlines()[-1]) == (1, "they differ")
    assert str(events[7].event_id) in output
    code, output = await turnpike("--json")
    assert code == 1
    assert [each["sequence"] for each in json.loads(output)["missing"]] == [8]


async def put_signed(analytics: Analytics, event: UsageEvent, signature: str) -> None:
    await analytics.insert(EVENTS_TABLE, STORED_COLUMNS, [(*row_of(event), signature)])


async def test_usage_of_an_invented_source_is_named(path: Path, analytics: Analytics) -> None:
    """However well it adds up."""
    for n in (1, 2):
        await put(analytics, an_event(n, source="invented"))
    found = await found_in(path, analytics)
    cost = sum(an_event(n, source="invented").cost_nanodollars for n in (1, 2))
    assert found.unknown_sources == [UnsignedSource("invented", 2, cost)]
    assert [(each.source, each.sequence, each.detail) for each in found.unauthenticated] == [
        ("invented", 1, "no signature"),
        ("invented", 2, "no signature"),
    ]
    assert found.drift
    assert not found.hours, "the equation of this journal holds"


async def test_rows_of_other_gateways_are_verified(path: Path, analytics: Analytics) -> None:
    theirs = [an_event(n, source="theirs") for n in (1, 2, 3)]
    for event in theirs:
        await put_signed(analytics, event, SIGNER.sign(event))
    assert not (await found_in(path, analytics)).drift
    dearer = replace(theirs[1], cost_nanodollars=theirs[1].cost_nanodollars + 1)
    await put_signed(analytics, dearer, SIGNER.sign(theirs[1]))
    found = await found_in(path, analytics)
    (finding,) = found.unauthenticated
    assert (finding.event_id, finding.cost_nanodollars) == (dearer.event_id, dearer.cost_nanodollars)
    assert finding.tenant_id == dearer.tenant_id
    assert found.drift
    assert not found.unknown_sources, "the source is a gateway's"


async def test_usage_in_this_journals_name_beyond_its_last_number_is_named(path: Path, analytics: Analytics) -> None:
    source = journalled(path)[0].source
    await put(analytics, an_event(EVENTS + 1_000, source=source))
    found = await found_in(path, analytics)
    assert [each.sequence for each in found.unauthenticated] == [EVENTS + 1_000]
    assert found.drift


async def test_rows_of_before_signatures_are_counted_and_are_no_drift(path: Path, analytics: Analytics) -> None:
    await put(analytics, an_event(1, source="theirs"))
    until = utc_from_ms(NOW_MS + HOUR_MS)
    found = await reconcile(path, analytics, WINDOW, SignaturePolicy(SIGNER, until), now_ms=LATER_MS)
    assert (found.former_rows, found.unauthenticated, found.drift) == (1, [], False)
    until = utc_from_ms(NOW_MS)
    found = await reconcile(path, analytics, WINDOW, SignaturePolicy(SIGNER, until), now_ms=LATER_MS)
    assert (found.former_rows, len(found.unauthenticated)) == (0, 1)


async def test_each_row_is_verified_once(path: Path, analytics: Analytics, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.metering.reconciliation.stored_signatures.PAGE_ROWS", 4)
    await analytics.command("SYSTEM STOP MERGES usage_events")
    wrong = [an_event(n, source="invented", ended_ms=NOW_MS + n // 10 * HOUR_MS) for n in range(1, 31)]
    for event in [*wrong, wrong[4], replace(wrong[4], key_id="other")]:
        await put(analytics, event)
    window = TimeRange(NOW_MS, NOW_MS + 4 * HOUR_MS)
    found = await reconcile(path, analytics, window, SIGNATURES, now_ms=LATER_MS)
    assert [each.rows for each in found.unknown_sources] == [32]
    assert sorted(each.sequence for each in found.unauthenticated) == sorted([*range(1, 31), 5, 5])


async def test_a_row_that_no_program_has_written_is_named(path: Path, analytics: Analytics) -> None:
    await put(analytics, replace(an_event(1), schema_version=9))
    (finding,) = (await found_in(path, analytics)).unauthenticated
    assert finding.detail == "schema_version is 9"
