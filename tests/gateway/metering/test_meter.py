"""A request is billed for what was sent, however it ends."""

from pathlib import Path

import pytest

from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.journal import Journal, JournalUnavailable
from gateway.metering.journal.meter import Meter
from gateway.metering.journal.usage_context import Progress, Work
from tests.gateway.metering.journals import NOW_MS, a_usage_context, events_in, journal_at


async def event_after(
    path: Path, *, advanced: Progress | None, whole: Progress, ending: Ending, started: int = 0
) -> UsageEvent:
    async with journal_at(path) as journal:
        meter = a_meter(journal)
        if advanced is not None:
            meter.advance(advanced)
        meter.status_sent = started
        if ending in (Ending.STOP, Ending.LENGTH, Ending.QUOTA):
            await meter.close(whole, Work(engine_ns=5, preemptions=1), ending)
        meter.abandon(whole, Work(engine_ns=5, preemptions=1), ending, 500)
    (event,) = events_in(path)
    return event


def a_meter(journal: Journal) -> Meter:
    return Meter(journal, a_usage_context(), clock=lambda: NOW_MS + 40)


async def test_a_complete_answer_is_billed_whole(tmp_path: Path) -> None:
    event = await event_after(
        tmp_path / "j.db", advanced=Progress(10, 4, 2, 9), whole=Progress(10, 4, 3, 9), ending=Ending.QUOTA
    )
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (10, 4, 3)
    assert (event.undelivered_tokens, event.ttft_ms, event.total_latency_ms) == (0, 9, 40)
    assert (event.finish_reason, event.engine_ns, event.preemptions) == (Ending.QUOTA, 5, 1)
    assert event.cost_nanodollars == 6 * 5 + 4 * 2 + 3 * 7
    assert event.http_status == 200


@pytest.mark.parametrize(("started", "status"), [(0, 500), (200, 200)])
async def test_an_early_end_has_the_status_of_its_error_unless_a_response_started(
    tmp_path: Path, started: int, status: int
) -> None:
    event = await event_after(
        tmp_path / "j.db", advanced=None, whole=Progress(10, 0, 3), ending=Ending.ERROR, started=started
    )
    assert event.http_status == status


@pytest.mark.parametrize("ending", [Ending.CANCELLED, Ending.ERROR])
async def test_an_answer_cut_short_is_billed_as_far_as_it_was_sent(tmp_path: Path, ending: Ending) -> None:
    event = await event_after(
        tmp_path / "j.db", advanced=Progress(10, 4, 2, 9), whole=Progress(10, 4, 7, 9), ending=ending
    )
    assert (event.completion_tokens, event.undelivered_tokens, event.finish_reason) == (2, 5, ending)
    assert event.cost_nanodollars == 6 * 5 + 4 * 2 + 2 * 7


async def test_a_client_that_left_before_the_first_token_pays_nothing(tmp_path: Path) -> None:
    event = await event_after(tmp_path / "j.db", advanced=None, whole=Progress(10, 0, 3), ending=Ending.CANCELLED)
    assert (event.prompt_tokens, event.completion_tokens, event.undelivered_tokens) == (0, 0, 3)
    assert (event.cost_nanodollars, event.engine_ns) == (0, 5)


@pytest.mark.parametrize("sent", [Progress(), Progress(10, 4, 2, 9)])
async def test_a_journal_that_fails_at_the_end_bills_what_was_sent_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: Progress
) -> None:
    monkeypatch.setattr("gateway.metering.journal.journal.RETRY_S", 0.01)
    path = tmp_path / "j.db"
    async with journal_at(path) as journal:
        meter = a_meter(journal)
        if sent.completion_tokens:
            meter.advance(sent)
            meter.status_sent = 200
        commit = journal._file.commit

        def fail_once() -> None:
            monkeypatch.setattr(journal._file, "commit", commit)
            raise OSError("no space")

        monkeypatch.setattr(journal._file, "commit", fail_once)
        with pytest.raises(JournalUnavailable):
            await meter.close(Progress(10, 4, 3, 9), Work(), Ending.STOP)
        meter.abandon(Progress(10, 4, 3, 9), Work(), Ending.ERROR, 500)
    (event,) = events_in(path)
    assert event.finish_reason is Ending.ERROR
    assert event.http_status == (200 if sent.completion_tokens else 503)
    assert event.completion_tokens == sent.completion_tokens
    assert event.undelivered_tokens == 3 - sent.completion_tokens
    assert event.cost_nanodollars == (0 if not sent.completion_tokens else 6 * 5 + 4 * 2 + 2 * 7)
