"""Comparison of the clients' records with the billed usage.

A complete answer is billed once, with the usage that its client received. One that the drain cut ends with an error
that says so, and is billed at most what its client received. Clients see no other error, and every billed request has
a client.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.metering.event import Ending, UsageEvent
from tests.e2e.drain.clients import DRAINING, LONGEST_ANSWER, Seen

REFUSALS = {429: {"rate_limit_exceeded", "rate_limit_error", "overloaded"}, 503: {DRAINING}}
"""Statuses and codes of refusals before an answer begins."""


@dataclass(slots=True)
class Books:
    """`findings` breaks a promise, `outcomes` is for the record."""

    findings: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


def compare(seen: Sequence[Seen], events: Sequence[UsageEvent]) -> Books:
    """Compare the clients' record with the journal."""
    books = Books()
    billed = Counter(event.request_id for event in events)
    books.findings += [f"{request_id} is in the journal {n} times" for request_id, n in billed.items() if n > 1]
    by_request = {event.request_id: event for event in events}
    for each in seen:
        _compare_one(each, by_request, books)
    known = {each.request_id for each in seen}
    books.findings += [
        f"{event.request_id} is billed {event.completion_tokens} tokens, and nobody has them"
        for event in events
        if event.cost_nanodollars and event.request_id not in known
    ]
    if [event.sequence for event in events] != list(range(1, len(events) + 1)):
        books.findings.append("the journal's sequence has gaps")
    return books


def _compare_one(seen: Seen, events: dict[str, UsageEvent], books: Books) -> None:
    if not seen.status:
        books.outcomes["not read"] += 1
        if not seen.late:
            books.findings.append(f"a request of well before the signal was never answered: {seen}")
    elif seen.status != 200:
        books.outcomes[f"{seen.status}, asked {'late' if seen.late else 'early'}"] += 1
        if seen.error not in REFUSALS.get(seen.status, ()):
            books.findings.append(f"a client was told {seen.status} {seen.error}: {seen}")
    elif seen.ended:
        books.outcomes["ended"] += 1
        event = events.get(seen.request_id)
        charged = event and (event.prompt_tokens, event.completion_tokens)
        if seen.usage != charged or (seen.tokens is not None and seen.tokens != charged[1]):
            books.findings.append(f"{seen} ended and is billed {charged}")
    else:
        _compare_cut(seen, events, books)


def _compare_cut(seen: Seen, events: dict[str, UsageEvent], books: Books) -> None:
    books.outcomes["cut"] += 1
    if seen.error != DRAINING:
        books.findings.append(f"a stream broke off without saying why: {seen}")
    event = events.get(seen.request_id)
    if event is None:
        if seen.request_id:
            books.findings.append(f"{seen} was cut and is not in the journal")
        return
    most = LONGEST_ANSWER if seen.tokens is None else seen.tokens
    # Between its last token and its end an answer has been sent whole, and is billed so.
    is_whole = event.finish_reason in (Ending.STOP, Ending.LENGTH) and seen.tokens in (None, event.completion_tokens)
    if event.completion_tokens > most or not (is_whole or event.finish_reason is Ending.INTERRUPTED):
        books.findings.append(f"{seen} was cut and is billed {event.completion_tokens}, {event.finish_reason}")
