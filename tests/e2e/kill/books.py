"""Differences between the clients' records, the journal and the bill in ClickHouse, with their bounds.

Of a request whose client has the end, all three are equal. One that was cut off by the death of the gateway is billed
no more than its client has, and no less than what it had `LOST_MS` before the end. One that its client left is billed
what was sent until the gateway noticed. One that never began to arrive is billed nothing. The exception: a whole answer
that was committed and not yet sent when the gateway died is billed, although no client has it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.analytics import Analytics
from gateway.metering.event import Ending, UsageEvent
from tests.e2e.kill.clients import Manner, Received

NANODOLLARS = {"prompt": 100, "cached": 50, "completion": 400}
PRICES = ("0.1", "0.05", "0.4")
"""The same, in dollars per million tokens."""
JOURNAL_MS = 50
SLACK_MS = 250
"""How much later than it should a thread may run and a commit may be, on a machine that has other things to do."""
LOST_MS = JOURNAL_MS + SLACK_MS
NOTICED_TOKENS = 2
"""Of each choice: what may be sent between a client's leaving and the gateway's knowing it."""


@dataclass(slots=True)
class Books:
    """Results of a comparison. `findings` breaks a promise, the rest is for the record."""

    findings: list[str] = field(default_factory=list)
    requests: int = 0
    tokens: int = 0
    ended: int = 0
    left: int = 0
    cut: int = 0
    unanswered: Counter[Manner] = field(default_factory=Counter)
    lost_whole: int = 0
    """Whole answers that are billed and were not received."""
    lost_tokens: list[int] = field(default_factory=list)
    """Received and not billed, of each request that was cut off."""
    lost_ms: list[float] = field(default_factory=list)
    """Before the end of its connection: when the first of these arrived."""
    unreceived_tokens: int = 0
    """Billed to clients that left, and not received."""


def compare(received: Sequence[Received], events: Sequence[UsageEvent], whole_key_id: str) -> Books:
    """Compare the clients' record with the journal."""
    books = Books(requests=len(received), tokens=sum(each.tokens for each in received))
    by_request = {event.request_id: event for event in events}
    known = {each.request_id for each in received}
    for each in received:
        _compare_one(each, by_request.get(each.request_id), books)
    _compare_unknown([event for event in events if event.request_id not in known], whole_key_id, books)
    books.findings += _faults_of(events)
    return books


def _compare_one(record: Received, event: UsageEvent | None, books: Books) -> None:
    if not record.request_id:
        books.unanswered[record.manner] += 1
        return
    if event is None:
        if record.ended:
            books.findings.append(f"{record.request_id} ended and is not in the journal")
        else:
            _compare_cut(record, 0, books)
        return
    billed = event.completion_tokens
    if record.ended:
        books.ended += 1
        told = record.usage and tuple(record.usage.values())
        has = (record.prompt_tokens, 1, record.tokens)
        charged = (event.prompt_tokens, event.cached_tokens, billed)
        if not told == has == charged:
            books.findings.append(f"{record.request_id} ended: told {told}, received {has}, billed {charged}")
    elif record.left and event.finish_reason is Ending.CANCELLED:
        books.left += 1
        books.unreceived_tokens += billed - record.tokens
        if not record.tokens <= billed <= record.tokens + NOTICED_TOKENS * record.choices:
            books.findings.append(f"{record.request_id} was left: received {record.tokens}, billed {billed}")
    else:
        _compare_cut(record, billed, books)
    if billed and (event.prompt_tokens, event.cached_tokens) != (record.prompt_tokens, 1):
        books.findings.append(f"{record.request_id} is billed a prompt that it does not have")


def _compare_cut(record: Received, billed: int, books: Books) -> None:
    """The journal may not even know a request that began less than `LOST_MS` ago: it is billed nothing."""
    books.cut += 1
    lost = record.tokens - billed
    more = NOTICED_TOKENS * record.choices if record.left else 0
    if lost < -more:
        books.findings.append(f"{record.request_id} was cut: received {record.tokens}, billed {billed}")
    if lost <= 0:
        return
    lost_ms = (record.over_s - record.arrivals_s[billed]) * 1e3
    books.lost_tokens.append(lost)
    books.lost_ms.append(lost_ms)
    if lost_ms > LOST_MS:
        books.findings.append(f"{record.request_id} was cut: {lost} tokens lost, the first {lost_ms:.0f} ms old")


def _compare_unknown(events: Sequence[UsageEvent], whole_key_id: str, books: Books) -> None:
    """Events of requests that no client knows the id of."""
    for event in events:
        if not event.cost_nanodollars:
            continue
        if event.key_id == whole_key_id and event.finish_reason in (Ending.STOP, Ending.LENGTH):
            books.lost_whole += 1
        else:
            books.findings.append(f"{event.request_id} is billed {event.completion_tokens} tokens and unknown")
    if books.lost_whole > (unanswered := books.unanswered[Manner.WHOLE]):
        books.findings.append(f"{books.lost_whole} whole answers are billed, {unanswered} went unanswered")


def _faults_of(events: Sequence[UsageEvent]) -> list[str]:
    """In the journal itself."""
    faults = []
    if [event.sequence for event in events] != list(range(1, len(events) + 1)):
        faults.append("the journal's sequence has gaps")
    for name in ("event_id", "request_id"):
        if len({getattr(event, name) for event in events}) != len(events):
            faults.append(f"an {name} is in the journal twice")
    faults += [f"{event.request_id} costs {event.cost_nanodollars}" for event in events if not _is_fair(event)]
    return faults


def _is_fair(event: UsageEvent) -> bool:
    fresh = event.prompt_tokens - event.cached_tokens
    cost = NANODOLLARS["prompt"] * fresh + NANODOLLARS["cached"] * event.cached_tokens
    return event.cost_nanodollars == cost + NANODOLLARS["completion"] * event.completion_tokens


async def compare_store(analytics: Analytics, events: Sequence[UsageEvent]) -> list[str]:
    """Compare the journal with what a bill counts in ClickHouse: the same events, each once."""
    names = (
        *("request_id", "sequence", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_nanodollars"),
        "finish_reason",
    )
    rows = await analytics.query(f"SELECT event_id, {', '.join(names)} FROM usage_events FINAL")
    stored: Mapping[str, tuple] = {str(row[0]): tuple(row[1:]) for row in rows}
    written = {str(event.event_id): tuple(getattr(event, name) for name in names) for event in events}
    findings = [] if len(stored) == len(rows) else ["an event is billed twice"]
    findings += [
        f"event {each} is not in ClickHouse as it was written" for each in written if stored.get(each) != written[each]
    ]
    findings += [f"event {each} is not in the journal" for each in stored if each not in written]
    return findings
