"""Journals of tests, what is written to them, and what another process finds in them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import JournalFile
from gateway.metering.journal.usage_context import Progress, UsageContext, Work, event_of
from tests.support import usage_requests
from tests.support.usage_requests import NOW_MS

SENT = Progress(10, 4, 3, 20)


@asynccontextmanager
async def journal_at(path: Path, **options: int) -> AsyncIterator[Journal]:
    journal = Journal(path, **options)
    try:
        yield journal
    finally:
        await journal.aclose()


def a_usage_context(request_id: str = "r1", **changes: object) -> UsageContext:
    standard = usage_requests.a_usage_context(request_id, "t")
    return replace(standard, **{"tier": "premium", "tier_served": "premium"} | changes)  # type: ignore[arg-type]


def an_ending(usage_context: UsageContext, progress: Progress = SENT, ending: Ending = Ending.STOP) -> UsageEvent:
    return event_of(usage_context, progress, Work(engine_ns=9), ending, 200, NOW_MS + 30)


def crashed_copy(path: Path, target: Path) -> Path:
    """The journal as another process would find it if this one died now: copies of the file and its log."""
    target.mkdir()
    for each in path.parent.iterdir():
        if not each.name.endswith((".lock", "-shm")):
            (target / each.name).write_bytes(each.read_bytes())
    return target / path.name


def events_in(path: Path) -> list[UsageEvent]:
    file = JournalFile(path)
    events = [UsageEvent.from_json(row.body) for row in file.events_after(0, 10_000)]
    file.close()
    return events


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)
