"""Usage events of tests: those in a journal, and made ones."""

from dataclasses import replace

from gateway.common.ids import new_event_id
from gateway.common.timestamps import utc_from_ms
from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.journal_file import JournalFile
from tests.support.gateway import until

INPUT, CACHED, OUTPUT = 100, 50, 400
"""Prices of a token in nanodollars, by `services_with`."""


def events_of(journal) -> list[UsageEvent]:
    """All events of a journal, as another process reads them."""
    file = JournalFile(journal.path, read_only=True)
    try:
        return [UsageEvent.from_json(row.body) for row in file.events_after(0, 1000)]
    finally:
        file.close()


def event_of(journal) -> UsageEvent:
    """The only event, once it is there: a request that ends early does not wait for its event."""
    until(lambda: len(events_of(journal)) == 1)
    (event,) = events_of(journal)
    return event


def cost(event: UsageEvent) -> int:
    """The nanodollars that an event's tokens cost in the standard class."""
    fresh = event.prompt_tokens - event.cached_tokens
    return fresh * INPUT + event.cached_tokens * CACHED + event.completion_tokens * OUTPUT


def an_event(**changes: object) -> UsageEvent:
    event = UsageEvent(
        event_id=new_event_id(),
        source="s",
        sequence=1,
        request_id="chatcmpl-1",
        tenant_id="t",
        key_id="k",
        tier="premium",
        tier_served="standard",
        requested_model="auto",
        routed_model="m",
        served_model="m-2",
        model_version="v",
        route_reason="complexity_large",
        prompt_tokens=3,
        completion_tokens=5,
        total_latency_ms=9,
        finish_reason=Ending.STOP,
        price_version="p",
        cost_nanodollars=11,
        occurred_at=utc_from_ms(1_790_000_000_123),
    )
    return replace(event, **changes)
