"""Filters of the usage, request and routing pages: whose records are read, and over which window of time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from gateway.analytics.sums import Grain
from gateway.http.errors import APIError, invalid
from gateway.management.console.form_parsing import moment_of
from gateway.management.console.forms import Form
from gateway.management.console.screens import PageRequest
from gateway.management.console.tenant_scoped_reads import TenantScopedReads
from gateway.management.operations.timestamps import instant

LOCAL_CHARS = len("2026-01-02T12:00")
"""The number of characters of a timestamp that a `datetime-local` field shows."""

Reading = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Span:
    """A selectable window of time up to now, and its bucket size."""

    word: str
    name: str
    length: timedelta
    grain: Grain


SPANS = (
    Span("hour", "last hour", timedelta(hours=1), Grain.MINUTE),
    Span("day", "last 24 hours", timedelta(days=1), Grain.HOUR),
    Span("week", "last 7 days", timedelta(days=7), Grain.HOUR),
    Span("month", "last 30 days", timedelta(days=30), Grain.DAY),
    Span("quarter", "last 90 days", timedelta(days=90), Grain.DAY),
    Span("year", "last 365 days", timedelta(days=365), Grain.DAY),
)
_BY_WORD: Mapping[str, Span] = {each.word: each for each in SPANS}


def reading(page_request: PageRequest) -> Reading:
    """The admin API's reads: an administrator's by its role, a tenant's of its own records alone."""
    if page_request.tenant is not None:
        return TenantScopedReads(page_request.operations, page_request.tenant).read
    return page_request.actions.read


def window_query(query: Form, now: datetime, default: str) -> dict[str, str]:
    """`start` and `end` as the API takes them: those that were typed, or else the `window` that was chosen.

    Raises:
        APIError: 400 naming `window`.
    """
    typed = {name: moment for name in ("start", "end") if (moment := moment_of(query.get(name)))}
    if "start" in typed:
        return typed
    span = span_of(query, default)
    if "end" in typed:
        return {"start": _before(typed["end"], span), **typed}
    return {"start": instant(now - span.length), "end": instant(now)}


def span_of(query: Form, default: str) -> Span:
    """
    Raises:
        APIError: 400 naming `window`.
    """
    word = query.get("window") or default
    if word not in _BY_WORD:
        raise invalid("window", f"window must be one of {', '.join(_BY_WORD)}.")
    return _BY_WORD[word]


def span_options(spans: Sequence[Span] = SPANS) -> list[tuple[str, str]]:
    return [(each.word, each.name) for each in spans]


def typed_fields(query: Form, *names: str) -> dict[str, str]:
    """The values of a filter form, with timestamps as its fields show them."""
    typed = query.given(*names)
    return typed | {name: typed[name][:LOCAL_CHARS] for name in ("start", "end") if name in typed}


def shown_again(error: APIError) -> bool:
    """Whether an error is of the page's own filters, so that the page is shown again with their values."""
    return error.status == 400


def _before(end: str, span: Span) -> str:
    try:
        return instant(datetime.fromisoformat(end) - span.length)
    except (ValueError, OverflowError):
        raise invalid("end", "end must be a timestamp, such as 2026-01-02T12:00.") from None
