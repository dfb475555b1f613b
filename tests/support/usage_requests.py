"""Requests of tests, and where their events can be found again."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from gateway.analytics import Analytics, migrate, open_analytics
from gateway.billing.prices import Price
from gateway.common.ids import new_event_id
from gateway.metering.event import COLUMNS, Ending, UsageEvent
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import JournalFile, JournalRow
from gateway.metering.journal.usage_context import Progress, UsageContext, Work, event_of
from gateway.metering.signature import EventSigner, SignaturePolicy
from gateway.metering.sink.intake import EVENTS_TABLE, Message, row_of
from tests.support.tenants import PEPPER

NOW_MS = 1_790_000_000_000
PROMPT_TOKENS = 10
SIGNER = EventSigner(PEPPER)
SIGNATURES = SignaturePolicy(SIGNER)


def a_usage_context(request_id: str, tenant_id: str = "t0", opened_ms: int = NOW_MS) -> UsageContext:
    return UsageContext(
        event_id=new_event_id(),
        request_id=request_id,
        tenant_id=tenant_id,
        key_id="k",
        tier="standard",
        tier_served="standard",
        requested_model="m",
        routed_model="m",
        served_model="m",
        model_version="1",
        route_reason="explicit",
        price=Price("p1", 5, 2, 7),
        opened_ms=opened_ms,
    )


def sent(tokens: int) -> Progress:
    return Progress(PROMPT_TOKENS, 4, tokens, 20)


def an_event(n: int, *, source: str = "s", ended_ms: int = NOW_MS) -> UsageEvent:
    """Event `n` of a source."""
    usage_context = a_usage_context(f"{source}-r{n}", f"t{n % 3}")
    event = event_of(usage_context, sent(n % 7), Work(recompute_ns={"premium": n}), Ending.STOP, 200, ended_ms + n)
    return replace(event, source=source, sequence=n)


def a_message(offset: int, event: UsageEvent, timestamp_ms: int = 0) -> Message:
    """As a gateway sends it."""
    return Message(offset, event.to_json(), timestamp_ms, SIGNER.sign(event))


def rows_of(events: Sequence[UsageEvent]) -> list[JournalRow]:
    return [JournalRow(event.sequence, event.to_json()) for event in events]


@asynccontextmanager
async def journal_at(path: Path) -> AsyncIterator[Journal]:
    journal = Journal(path, interval_ms=5)
    try:
        yield journal
    finally:
        await journal.aclose()


async def finish(journal: Journal, count: int, ended_ms: int = NOW_MS) -> None:
    """Requests that begin and end."""
    contexts = [a_usage_context(f"r-{uuid4()}", f"t{n % 3}") for n in range(count)]
    for usage_context in contexts:
        journal.begin(usage_context)
    events = [
        event_of(usage_context, sent(n), Work(), Ending.STOP, 200, ended_ms + n)
        for n, usage_context in enumerate(contexts)
    ]
    await asyncio.gather(*(journal.finish(event) for event in events))


def journalled(path: Path) -> list[UsageEvent]:
    file = JournalFile(path, read_only=True)
    try:
        return [UsageEvent.from_json(row.body) for row in file.events_after(0, 1_000_000)]
    finally:
        file.close()


@asynccontextmanager
async def analytics_at(url: str) -> AsyncIterator[Analytics]:
    """The store at `url`, with its tables."""
    analytics = open_analytics(url)
    try:
        await migrate(analytics)
        yield analytics
    finally:
        await analytics.aclose()


async def billed(analytics: Analytics) -> dict[str, tuple[int, int, int, str]]:
    """The usage that a bill counts: request -> its sequence, sent tokens, cost and ending, each event once.

    Two events of one request, which no bill may have, are an error.
    """
    rows = await analytics.query(
        "SELECT request_id, sequence, completion_tokens, cost_nanodollars, finish_reason FROM usage_events FINAL"
    )
    found = {row[0]: tuple(row[1:]) for row in rows}
    assert len(found) == len(rows), "a request was billed twice"
    return found


def as_billed(events: Sequence[UsageEvent]) -> dict[str, tuple[int, int, int, str]]:
    """The result of `billed` for these events."""
    return {
        event.request_id: (event.sequence, event.completion_tokens, event.cost_nanodollars, event.finish_reason.value)
        for event in events
    }


async def until(condition: Callable[[], bool | Awaitable[bool]], within_s: float = 60, every_s: float = 0.02) -> None:
    deadline = time.monotonic() + within_s
    while True:
        met = condition()
        if met if isinstance(met, bool) else await met:
            return
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(every_s)


async def insert(analytics: Analytics, events: Sequence[UsageEvent]) -> None:
    rows = [[getattr(event, name) for name in COLUMNS] for event in events]
    column = COLUMNS.index("recompute_ns")
    for row in rows:
        row[column] = dict(row[column])
    await analytics.insert("usage_events", COLUMNS, rows)


async def delete(analytics: Analytics, *events: UsageEvent) -> None:
    for event in events:
        await analytics.command("DELETE FROM usage_events WHERE event_id = {id:UUID}", {"id": event.event_id})


async def put(analytics: Analytics, event: UsageEvent) -> None:
    await analytics.insert(EVENTS_TABLE, COLUMNS, [row_of(event)])
