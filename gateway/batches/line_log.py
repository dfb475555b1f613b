"""The usage log of lines: keeps the event of an answered line until its answer is on the disk."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from gateway.common.ids import new_event_id
from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.journal import Journal, JournalUnavailable
from gateway.metering.journal.journal_file import JournalFile
from gateway.metering.journal.usage_context import Progress, UsageContext

_IDS = 500


class LineLog:
    """A `UsageLog` over the journal. Nothing of a line is sent before its end, so no record of it needs to be open: a
    crash bills nothing of a line without an answer."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._events: dict[str, UsageEvent] = {}
        """Of answered lines, by the id of their HTTP request."""

    @property
    def source(self) -> str:
        """Id of the journal."""
        return self._journal.source

    def begin(self, usage_context: UsageContext) -> None:
        """Raises: JournalUnavailable: the disk fails or is nearly full."""
        if (trouble := self._journal.trouble) is not None:
            raise JournalUnavailable(trouble)

    def advance(self, request_id: str, progress: Progress) -> None:
        pass

    def wait_for_commits(self, request_id: str) -> Awaitable[None]:
        return asyncio.sleep(0)

    async def finish(self, event: UsageEvent, otherwise: Callable[[], UsageEvent] | None = None) -> None:
        self._events[event.http_request_id] = event

    def finish_later(self, event: UsageEvent) -> None:
        """Of a line that failed: nothing of it was sent, so its event bills nothing."""
        self._journal.finish_later(event)

    def take(self, http_request_id: str) -> UsageEvent | None:
        """Take the event of an answered request."""
        return self._events.pop(http_request_id, None)

    async def bill(self, event: UsageEvent) -> None:
        """Record an event whose answer is on the disk, unless the journal has it. Not concurrently for one id.

        Raises:
            JournalUnavailable: it is not recorded, and can be billed again.
        """
        if await self.billed([event.event_id], own_only=True):
            return

        def instead() -> UsageEvent:
            """Where the commit fails the journal writes something once the disk works: it must not have this id, as the
            event is billed again then."""
            return replace(
                event,
                event_id=new_event_id(),
                finish_reason=Ending.ERROR,
                http_status=503,
                prompt_tokens=0,
                cached_tokens=0,
                completion_tokens=0,
                cost_nanodollars=0,
            )

        await self._journal.finish(event, instead)

    async def billed(self, event_ids: Sequence[UUID], *, own_only: bool = False) -> set[UUID]:
        """Those of the ids that the journal has or, unless `own_only`, that another one in its folder has: that of
        another gateway process, which may have run the batch before."""
        paths = [self._journal.path] if own_only else sorted(_journals(self._journal.path))
        return await asyncio.to_thread(_recorded, paths, [str(each) for each in event_ids])


def _journals(path: Path) -> Iterator[Path]:
    yield path
    stem = path.stem.rpartition("-")[0] if path.stem.rpartition("-")[2].isdecimal() else path.stem
    for other in path.parent.glob(f"{stem}*{path.suffix}"):
        if other != path:
            yield other


def _recorded(paths: Sequence[Path], ids: Sequence[str]) -> set[UUID]:
    found: set[str] = set()
    for path in paths:
        try:
            with closing(JournalFile(path, read_only=True)) as file:
                for first in range(0, len(ids), _IDS):
                    found |= file.recorded(ids[first : first + _IDS])
        except sqlite3.Error as error:
            raise JournalUnavailable(f"{path} cannot be read: {error}") from error
    return {UUID(each) for each in found}


def events_of(unbilled: Mapping[int, str]) -> dict[int, UsageEvent]:
    """The events of results, by line."""
    return {line: UsageEvent.from_json(event.encode()) for line, event in unbilled.items()}
