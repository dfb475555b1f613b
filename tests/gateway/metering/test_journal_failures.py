"""A disk that fails or is nearly full: new requests are refused, no usage is lost, and the journal recovers."""

import sqlite3
import threading
from pathlib import Path

import pytest

from engine.runtime.futures import outcome_of
from gateway.metering.event import Ending
from gateway.metering.journal.journal import Journal, JournalUnavailable
from gateway.metering.journal.journal_file import JournalFile
from gateway.metering.journal.usage_context import Progress
from tests.gateway.metering.journals import a_usage_context, an_ending, events_in, journal_at, until


class FailingDisk:
    """Lets the journal's commits fail. What was written before a failed commit is rolled back, as SQLite does."""

    def __init__(self, journal: Journal) -> None:
        self._file = journal._file
        self._commit = journal._file.commit
        self.failing = threading.Event()

    def commit(self) -> None:
        if self.failing.is_set():
            raise sqlite3.OperationalError("disk I/O error")
        self._commit()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.metering.journal.journal.RETRY_S", 0.01)


@pytest.mark.usefixtures("quick_retries")
async def test_a_failing_disk_refuses_new_work_and_loses_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with journal_at(path) as journal:
        disk = FailingDisk(journal)
        monkeypatch.setattr(journal._file, "commit", disk.commit)
        before, streamed, whole = a_usage_context("before"), a_usage_context("streamed"), a_usage_context("whole")
        for usage_context in (before, streamed, whole):
            journal.begin(usage_context)
        await journal.finish(an_ending(before))

        disk.failing.set()
        delivered = an_ending(streamed, ending=Ending.ERROR)
        with pytest.raises(JournalUnavailable):
            await journal.finish(an_ending(streamed), lambda: delivered)
        with pytest.raises(JournalUnavailable):
            await journal.finish(an_ending(whole), lambda: an_ending(whole, Progress(), Ending.ERROR))
        assert journal.trouble is not None
        with pytest.raises(JournalUnavailable):
            journal.begin(a_usage_context("refused"))

        disk.failing.clear()
        await until(lambda: journal.trouble is None)
        usage_context = a_usage_context("after")
        journal.begin(usage_context)
        await journal.finish(an_ending(usage_context))
    costs = {event.request_id: event.cost_nanodollars for event in events_in(path)}
    assert costs == {
        "before": an_ending(before).cost_nanodollars,
        "streamed": delivered.cost_nanodollars,
        "whole": 0,
        "after": an_ending(usage_context).cost_nanodollars,
    }
    assert [event.sequence for event in events_in(path)] == [1, 2, 3, 4]


@pytest.mark.usefixtures("quick_retries")
async def test_a_disk_that_failed_while_idle_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has its answer, so nothing is left to write, and no request may begin."""
    async with journal_at(path) as journal:
        disk = FailingDisk(journal)
        monkeypatch.setattr(journal._file, "commit", disk.commit)
        disk.failing.set()
        with pytest.raises(JournalUnavailable):
            await outcome_of(journal.follow_credit({}))
        assert journal.trouble is not None
        disk.failing.clear()
        await until(lambda: journal.trouble is None)
        usage_context = a_usage_context()
        journal.begin(usage_context)
        await journal.finish(an_ending(usage_context))
    assert [event.request_id for event in events_in(path)] == ["r1"]


def test_a_touch_is_written_and_changes_nothing(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = JournalFile(path)
    wal = path.with_name(path.name + "-wal")
    before = wal.stat().st_size
    file.begin()
    file.touch()
    file.commit()
    assert wal.stat().st_size > before
    assert (file.last_sequence(), file.relayed_sequence()) == (0, 0)
    file.close()


async def test_a_nearly_full_disk_refuses_new_work_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with journal_at(path) as journal:
        usage_context = a_usage_context()
        journal.begin(usage_context)
        monkeypatch.setattr(journal, "min_free_bytes", 2**62)
        monkeypatch.setattr(journal, "_disk_checked", -10.0)
        with pytest.raises(JournalUnavailable, match="bytes left"):
            journal.begin(a_usage_context("r2"))
        await journal.finish(an_ending(usage_context))
    assert [event.request_id for event in events_in(path)] == ["r1"]
