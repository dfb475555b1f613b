"""The journal keeps each record once, through crashes."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from engine.runtime.futures import outcome_of
from gateway.billing.prices import Price
from gateway.common.timestamps import unix_ms
from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.journal import Journal, JournalInUse, JournalUnavailable
from gateway.metering.journal.journal_file import HOUR_MS, JournalFile
from gateway.metering.journal.meter import Meter
from gateway.metering.journal.usage_context import Progress, UsageContext
from tests.gateway.metering.journals import (
    NOW_MS,
    SENT,
    a_usage_context,
    an_ending,
    crashed_copy,
    events_in,
    journal_at,
    until,
)


async def test_an_event_is_on_the_disk_when_finish_returns(path: Path, tmp_path: Path) -> None:
    async with journal_at(path) as journal:
        usage_context = a_usage_context()
        journal.begin(usage_context)
        event = an_ending(usage_context)
        await journal.finish(event)
        (found,) = events_in(crashed_copy(path, tmp_path / "crashed"))
        assert (found.source, found.sequence) == (journal.source, 1)
        assert found.cost_nanodollars == 6 * 5 + 4 * 2 + 3 * 7
        assert (found.event_id, found.finish_reason, found.engine_ns) == (usage_context.event_id, Ending.STOP, 9)
        assert journal.last_sequence == 1


async def test_sequences_count_up_without_a_gap_over_restarts(path: Path) -> None:
    for start in range(3):
        async with journal_at(path) as journal:
            contexts = [a_usage_context(f"r{start}-{each}") for each in range(20)]
            for usage_context in contexts:
                journal.begin(usage_context)
            await asyncio.gather(*(journal.finish(an_ending(each)) for each in contexts))
    events = events_in(path)
    assert [event.sequence for event in events] == list(range(1, 61))
    assert len({event.source for event in events}) == 1
    assert len({event.request_id for event in events}) == 60


async def test_what_a_dead_process_left_open_is_interrupted_at_what_was_sent(path: Path, tmp_path: Path) -> None:
    async with journal_at(path, interval_ms=1) as journal:
        usage_context = a_usage_context()
        journal.begin(usage_context)
        journal.advance("r1", Progress(10, 4, 1, 20))
        journal.advance("r1", Progress(10, 4, 2, 20, estimated=True))
        file = JournalFile(path)
        await until(lambda: [each.progress.completion_tokens for each in file.open_requests()] == [2])
        file.close()
        left = crashed_copy(path, tmp_path / "crashed")
    async with journal_at(left) as journal:
        assert journal.last_sequence == 1
    async with journal_at(left) as journal:
        assert journal.last_sequence == 1, "interrupted once, not at every start"
    (event,) = events_in(left)
    assert event.finish_reason is Ending.INTERRUPTED
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens, event.estimated) == (10, 4, 2, True)
    assert event.cost_nanodollars == 6 * 5 + 4 * 2 + 2 * 7
    assert event.event_id == usage_context.event_id


async def test_a_request_that_was_handed_over_is_billed_as_it_was_opened_last(path: Path, tmp_path: Path) -> None:
    async with journal_at(path, interval_ms=1) as journal:
        meter = Meter(journal, a_usage_context(served_model="small", price=Price("p-small", 1, 1, 1)))
        file = JournalFile(path)
        await until(lambda: len(file.open_requests()) == 1)
        meter.reopen(a_usage_context())
        meter.advance(SENT)
        await until(lambda: [each.progress for each in file.open_requests()] == [SENT])
        file.close()
        left = crashed_copy(path, tmp_path / "crashed")
    async with journal_at(left):
        pass
    (event,) = events_in(left)
    assert (event.served_model, event.price_version) == ("m", "p1")
    assert event.cost_nanodollars == a_usage_context().cost(SENT)


async def test_a_request_that_sent_nothing_costs_nothing(path: Path, tmp_path: Path) -> None:
    async with journal_at(path, interval_ms=1) as journal:
        journal.begin(a_usage_context())
        file = JournalFile(path)
        await until(lambda: len(file.open_requests()) == 1)
        file.close()
        left = crashed_copy(path, tmp_path / "crashed")
    async with journal_at(left):
        pass
    (event,) = events_in(left)
    assert (event.prompt_tokens, event.completion_tokens, event.cost_nanodollars) == (0, 0, 0)


async def test_closing_writes_what_nobody_waits_for(path: Path) -> None:
    async with journal_at(path, interval_ms=60_000) as journal:
        usage_context = a_usage_context()
        journal.begin(usage_context)
        journal.finish_later(an_ending(usage_context, ending=Ending.CANCELLED))
    assert [event.finish_reason for event in events_in(path)] == [Ending.CANCELLED]
    with pytest.raises(JournalUnavailable):
        journal.begin(a_usage_context("r2"))


async def test_one_commit_carries_all_who_wait(path: Path) -> None:
    async with journal_at(path) as journal:
        commits = 0

        def count(*_: object) -> int:
            nonlocal commits
            commits += 1
            return 0

        file = journal._file._connection
        file.set_trace_callback(lambda statement: count() if statement == "COMMIT" else None)
        contexts = [a_usage_context(f"r{each}") for each in range(500)]
        for usage_context in contexts:
            journal.begin(usage_context)
        await asyncio.gather(*(journal.finish(an_ending(each)) for each in contexts))
        file.set_trace_callback(None)
    assert commits < 20


async def test_one_writer_only(path: Path) -> None:
    async with journal_at(path):
        with pytest.raises(JournalInUse):
            Journal(path)
    async with journal_at(path):
        pass


async def test_every_connection_waits_for_the_disk(path: Path) -> None:
    async with journal_at(path) as journal:
        for file in (journal._file, JournalFile(path), JournalFile(path, read_only=True)):
            assert file._connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert journal._file._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


async def test_hours_and_months_add_up(path: Path) -> None:
    async with journal_at(path) as journal:
        for each in range(5):
            usage_context = a_usage_context(f"r{each}", tenant_id=f"t{each % 2}")
            journal.begin(usage_context)
            event = an_ending(usage_context)
            await journal.finish(event)
    file = JournalFile(path)
    (totals,) = file.hours(0, 2**60).values()
    (hour_ms,) = file.hours(0, 2**60)
    assert hour_ms == unix_ms(event.occurred_at) // HOUR_MS * HOUR_MS
    assert (totals.events, totals.prompt_tokens, totals.cached_tokens) == (5, 50, 20)
    assert totals.cost_nanodollars == sum(each.cost_nanodollars for each in events_in(path))
    assert {(each.tenant_id, each.nanodollars, each.tokens) for each in file.spent()} == {
        ("t0", 3 * event.cost_nanodollars, 39),
        ("t1", 2 * event.cost_nanodollars, 26),
    }
    file.close()
    async with journal_at(path) as journal:
        assert sum(each.nanodollars for each in journal.spent_at_start) == totals.cost_nanodollars


async def finished(journal: Journal, request_id: str, **changes: object) -> UsageEvent:
    usage_context = a_usage_context(request_id, **changes)
    journal.begin(usage_context)
    event = an_ending(usage_context)
    await journal.finish(event)
    return event


async def test_credit_is_followed_from_the_admission_of_requests_on(path: Path) -> None:
    """Those that ended before it was asked for included, and not those that were admitted earlier and end later."""
    async with journal_at(path) as journal:
        await finished(journal, "before", opened_ms=NOW_MS - 1)
        one = (await finished(journal, "at once", opened_ms=NOW_MS)).cost_nanodollars
        await finished(journal, "another's", opened_ms=NOW_MS, tenant_id="other")
        assert await outcome_of(journal.follow_credit({"t": NOW_MS, "idle": NOW_MS})) == {"t": one, "idle": 0}
        await finished(journal, "late", opened_ms=NOW_MS - 5)
        await finished(journal, "later", opened_ms=NOW_MS + 10)
        assert await outcome_of(journal.follow_credit({"t": 0})) == {"t": 2 * one, "idle": 0}, "the first word counts"
    async with journal_at(path) as journal:
        await finished(journal, "after a restart", opened_ms=NOW_MS + 20)
        assert await outcome_of(journal.follow_credit({})) == {"t": 3 * one, "idle": 0}
    with pytest.raises(JournalUnavailable):
        await outcome_of(journal.follow_credit({}))


async def test_credit_of_which_events_were_pruned_is_that_of_its_months(path: Path) -> None:
    """Of a journal of an earlier program. No less than was spent."""
    async with journal_at(path) as journal:
        spent = [await finished(journal, f"{n}", opened_ms=NOW_MS + n) for n in range(3)]
        journal.acknowledge(2)
        await until(lambda: journal.backlog_events == 1)
    file = JournalFile(path)
    file.prune(NOW_MS + HOUR_MS, 100)
    file.follow_credit({"t": NOW_MS + 1})
    assert file.credit_spent() == {"t": sum(event.cost_nanodollars for event in spent)}
    file.close()


async def test_what_was_pruned_before_the_first_grant_is_no_part_of_it(path: Path) -> None:
    async with journal_at(path) as journal:
        await finished(journal, "long ago")
        journal.acknowledge(1)
        await until(lambda: journal.backlog_events == 0)
    file = JournalFile(path)
    file.prune(NOW_MS + HOUR_MS, 100)
    file.follow_credit({"t": NOW_MS + 2 * HOUR_MS})
    assert file.credit_spent() == {"t": 0}
    file.close()


async def test_no_sum_is_too_large_for_the_journal(path: Path) -> None:
    """Even of prices and numbers beyond all bounds: one tenant's amounts never keep others' events from the disk."""
    most = 2**63 - 1
    async with journal_at(path) as journal:
        journal.follow_credit({"t": 0})
        for n in range(3):
            await finished(journal, f"{n}", price=Price("p1", most, most, most))
        await finished(journal, "another's", tenant_id="other")
        assert journal.trouble is None
        assert (await outcome_of(journal.follow_credit({})))["t"] == most
    file = JournalFile(path)
    (totals,) = file.hours(0, 2**60).values()
    assert (totals.events, totals.cost_nanodollars) == (4, most)
    assert {each.tenant_id: each.nanodollars for each in file.spent()}["t"] == most
    file.close()


async def test_only_what_has_arrived_is_pruned(path: Path) -> None:
    async with journal_at(path) as journal:
        for each in range(4):
            usage_context = a_usage_context(f"r{each}")
            journal.begin(usage_context)
            await journal.finish(an_ending(usage_context))
        assert journal.backlog_events == 4
        journal.acknowledge(2)
        await until(lambda: journal.backlog_events == 2)
    file = JournalFile(path)
    file.prune(NOW_MS + HOUR_MS, 100)
    assert [row.sequence for row in file.events_after(0, 10)] == [3, 4]
    assert (file.last_sequence(), file.relayed_sequence()) == (4, 2)
    file.close()


async def test_a_caller_who_is_cancelled_does_not_stop_the_writer(path: Path) -> None:
    async with journal_at(path, interval_ms=60_000) as journal:
        usage_context, other = a_usage_context("r1"), a_usage_context("r2")
        journal.begin(usage_context)
        journal.begin(other)
        waiting = asyncio.create_task(journal.finish(an_ending(usage_context)))
        await asyncio.sleep(0)
        waiting.cancel()
        await journal.finish(an_ending(other))
    assert {event.request_id for event in events_in(path)} == {"r1", "r2"}


def test_a_file_that_is_no_journal_is_said(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database, whatever its name says" * 100)
    with pytest.raises(JournalUnavailable, match=path.name):
        Journal(path)


async def test_an_end_waits_for_others_only_while_there_are_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits are shared by those who may end soon; one who is alone has its own at once."""
    monkeypatch.setattr("gateway.metering.journal.journal.GATHER_MS", 3_600_000)

    async def ended(journal: Journal, usage_context: UsageContext) -> None:
        event = an_ending(usage_context)
        await journal.finish(event)

    async with journal_at(path) as journal:
        for name in ("r1", "r2"):
            alone = a_usage_context(name)
            journal.begin(alone)
            journal.begin(alone)  # another model took it over
            async with asyncio.timeout(30):
                await ended(journal, alone)
        first, second, third = a_usage_context("r3"), a_usage_context("r4"), a_usage_context("r5")
        for each in (first, second, third):
            journal.begin(each)
        waiting = asyncio.create_task(ended(journal, first))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        other = an_ending(second)
        journal.finish_later(other)
        await asyncio.sleep(0.2)
        assert not waiting.done()
        async with asyncio.timeout(30):
            await ended(journal, third)
            await waiting


@pytest.mark.anyio
async def test_a_request_is_on_the_disk_before_any_of_its_answer_is_sent(path: Path, tmp_path: Path) -> None:
    """Without waiting for the interval; and nothing is waited for once it is."""
    async with journal_at(path, interval_ms=60_000) as journal:
        journal.begin(a_usage_context("r1"))
        await journal.wait_for_commits("r1")
        crashed = crashed_copy(path, tmp_path / "crashed")
        commits = journal.commits_total
        await journal.wait_for_commits("r1")
        assert journal.commits_total == commits
    async with journal_at(crashed):
        (found,) = events_in(crashed)
    assert (found.request_id, found.finish_reason) == ("r1", Ending.INTERRUPTED)


@pytest.mark.anyio
async def test_no_stream_is_further_ahead_of_a_slow_disk_than_two_intervals(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with journal_at(path, interval_ms=20) as journal:
        journal.begin(a_usage_context("r1"))
        await journal.wait_for_commits("r1")
        disk = threading.Event()
        commit = JournalFile.commit
        monkeypatch.setattr(JournalFile, "commit", lambda file: (disk.wait(), commit(file)))
        journal.advance("r1", Progress(10, 4, 1, 20))
        await asyncio.sleep(0.1)
        sending = asyncio.create_task(journal.wait_for_commits("r1"))
        await asyncio.sleep(0.1)
        assert not sending.done()
        disk.set()
        async with asyncio.timeout(30):
            await sending


@pytest.mark.anyio
async def test_streams_outlast_one_failed_commit_and_no_second(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.metering.journal.journal.RETRY_S", 0.05)
    async with journal_at(path, interval_ms=5) as journal:
        commit, failures = JournalFile.commit, [1]

        def failing(file: JournalFile) -> None:
            if failures[0]:
                failures[0] -= 1
                raise sqlite3.OperationalError("disk I/O error")
            commit(file)

        monkeypatch.setattr(JournalFile, "commit", failing)
        journal.begin(a_usage_context("r1"))
        async with asyncio.timeout(30):
            await journal.wait_for_commits("r1")
        failures[0] = 3
        journal.begin(a_usage_context("r2"))
        async with asyncio.timeout(30):
            with pytest.raises(JournalUnavailable):
                await journal.wait_for_commits("r2")
