"""A journal on a disk that fails; run with the library of faulty_disk.c before the C library.

    python -m tests.gateway.metering.on_faulty_disk JOURNAL RECORD sync|full SYNCS_LEFT die|recover

The record (see `crashing.Record`) says what clients know: `ended` whole answers, and `failed`, with what had been sent
of them before.
"""

import asyncio
import ctypes
import os
import signal
import sys
from pathlib import Path

from gateway.metering.event import Ending
from gateway.metering.journal import journal as journal_module
from gateway.metering.journal.journal import Journal, JournalUnavailable
from gateway.metering.journal.usage_context import UsageContext, Work, event_of
from tests.gateway.metering.crashing import Record
from tests.support.usage_requests import NOW_MS, a_usage_context, sent, until

REQUESTS = 4
TOKENS = 6
SENT_BEFORE = 2
WORKS, SYNC_FAILS, FULL = 0, 1, 2


async def finish(journal: Journal, record: Record, usage_context: UsageContext, sent_before: int) -> None:
    """The end of a request of which a client has a part: nothing where it is not streamed."""
    event = event_of(usage_context, sent(TOKENS), Work(), Ending.STOP, 200, NOW_MS)
    otherwise = event_of(usage_context, sent(sent_before), Work(), Ending.ERROR, 503, NOW_MS)
    try:
        await journal.finish(event, lambda: otherwise)
    except JournalUnavailable:
        record.note("failed", usage_context.request_id, sent_before)
    else:
        record.note("ended", usage_context.request_id, TOKENS)


async def main(path: Path, record: Record, kind: int, syncs_left: int, then: str) -> None:
    disk = ctypes.CDLL(None)
    journal_module.RETRY_S = 0.05
    journal = Journal(path, interval_ms=5)
    whole = [a_usage_context(f"whole-{n}") for n in range(REQUESTS)]
    streamed = [a_usage_context(f"streamed-{n}") for n in range(REQUESTS)]
    for usage_context in [*whole, *streamed]:
        journal.begin(usage_context)
    for usage_context in streamed:
        journal.advance(usage_context.request_id, sent(SENT_BEFORE))
    disk.fault_set(kind, syncs_left, str(path.parent).encode())
    for pair in zip(whole, streamed, strict=True):
        await asyncio.gather(finish(journal, record, pair[0], 0), finish(journal, record, pair[1], SENT_BEFORE))
    assert journal.trouble is not None
    try:
        journal.begin(a_usage_context("refused"))
    except JournalUnavailable:
        record.note("refused", "refused", 0)
    if then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    disk.fault_set(WORKS, 0, b"")
    await until(lambda: journal.trouble is None)
    last = a_usage_context("last")
    journal.begin(last)
    await finish(journal, record, last, 0)
    await journal.aclose()


if __name__ == "__main__":
    journal_path, record_path, kind, syncs_left, then = sys.argv[1:]
    asyncio.run(
        main(
            Path(journal_path),
            Record(Path(record_path)),
            {"sync": SYNC_FAILS, "full": FULL}[kind],
            int(syncs_left),
            then,
        )
    )
