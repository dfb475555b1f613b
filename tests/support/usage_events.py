"""Usage events of tests: those in a journal, and made ones."""

from gateway.metering.event import UsageEvent
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
