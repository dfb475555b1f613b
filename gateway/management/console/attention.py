"""Problems of the installation for an administrator: each entry states one, and links to where one acts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import quote

from gateway.analytics.refusals import refused_tenants
from gateway.analytics.sums import TimeRange
from gateway.analytics.usage import busiest_tenants
from gateway.billing.money import NANODOLLARS_PER_CENT, cents
from gateway.billing.overdue import read_overdue
from gateway.common.timestamps import unix_ms
from gateway.http.errors import APIError
from gateway.management.console.addresses import address
from gateway.management.console.context import ConsoleContext
from gateway.management.console.formatting import duration, percent, whole
from gateway.management.console.limits import WORDS
from gateway.management.console.names import Names, names_of
from gateway.management.console.screens import PageRequest
from gateway.management.operations.operations import typed_errors
from gateway.metering.reconciliation.reconciliation_monitor import ReconciliationMonitor
from gateway.metering.relay.relay import Relay
from gateway.tenancy.limits import ScopeKind

NEAR_LIMIT = 0.8
"""Used share of a limit from which it is listed."""
NEAR_CREDIT = 0.9
"""Used share of prepaid credit from which it is listed."""
MAX_TENANTS = 50
"""Tenants whose limits are read: those with most requests in the last 24 hours. The others use none of theirs."""
MAX_REFUSED = 10
BACKLOG_AGE_S = 120
"""Age of an undelivered usage event from which the backlog is listed."""

_CREDIT = "credit_nanodollars"


@dataclass(frozen=True, slots=True)
class Entry:
    """`tone`: bad or warn. `link`: address and text of the page to act on."""

    tone: str
    what: str
    text: str
    link: tuple[str, str]


async def attention(context: ConsoleContext, page_request: PageRequest) -> list[Entry]:
    """All entries, the bad ones first. A store that does not answer is an entry of its own."""
    entries = [*_journal(context), *_relay(context.relay), *_books(context.books, context.now()), *_prices(context)]
    now = context.now()
    try:
        entries += await _overdue(context, now)
        entries += await _refused(context, page_request, now)
        entries += await _limits(context, page_request, now)
    except APIError as error:
        if error.status != 503:
            raise
        entries.append(Entry("bad", "Stores", error.message, (address("/scheduler"), "Scheduler")))
    return sorted(entries, key=lambda each: each.tone != "bad")


def _journal(context: ConsoleContext) -> Iterator[Entry]:
    if context.journal.trouble:
        text = f"The journal cannot be written, so new requests are rejected: {context.journal.trouble}."
        yield Entry("bad", "Journal", text, (address("/reconciliation"), "Reconciliation"))


def _relay(relay: Relay | None) -> Iterator[Entry]:
    if relay is not None and (relay.failing_s or relay.backlog_age_s > BACKLOG_AGE_S):
        text = f"{whole(relay.backlog_events)} usage events wait in the journal, the oldest for "
        text += f"{duration(relay.backlog_age_s * 1000)}."
        if relay.last_error is not None:
            text += f" Delivery fails: {relay.last_error}."
        yield Entry("bad", "Usage backlog", text, (address("/reconciliation"), "Reconciliation"))


def _books(books: ReconciliationMonitor | None, now: datetime) -> Iterator[Entry]:
    if books is None:
        return
    drift = books.drift
    if drift.hours:
        text = f"Journal and usage store differ in {drift.hours} hours: {drift.missing} events missing, "
        text += f"{drift.doubled} doubled, {drift.altered} altered."
        link = address("/reconciliation", {"run": "yes"})
        yield Entry("bad", "Reconciliation", text, (link, "Compare event by event"))
    elif books.is_failing:
        yield Entry(
            "warn",
            "Reconciliation",
            "The last automatic comparison of journal and usage store failed.",
            (address("/reconciliation"), "Reconciliation"),
        )


def _prices(context: ConsoleContext) -> Iterator[Entry]:
    for model in context.prices.unpriced(context.engine.models, context.now()):
        text = f"The model {model} is served and has no price: its requests fail."
        yield Entry("bad", "Prices", text, (address("/prices"), "Set a price"))


async def _overdue(context: ConsoleContext, now: datetime) -> list[Entry]:
    with typed_errors():
        async with context.admin.reading() as connection:
            overdue = await read_overdue(connection, now.date())
    if not overdue.invoices:
        return []
    are = "invoice is" if overdue.invoices == 1 else "invoices are"
    text = (
        f"{whole(overdue.invoices)} {are} past the due date: ${cents(overdue.due_cents * NANODOLLARS_PER_CENT)} is due."
    )
    return [Entry("warn", "Overdue", text, (address("/invoices", {"status": "overdue"}), "Invoices"))]


async def _refused(context: ConsoleContext, page_request: PageRequest, now: datetime) -> list[Entry]:
    window = TimeRange(unix_ms(now - timedelta(hours=1)), unix_ms(now) + 1)
    with typed_errors():
        found = await refused_tenants(context.analytics, window, limit=MAX_REFUSED)
    names = await names_of(context, page_request, tenants=[each.tenant_id for each in found])
    return [
        Entry(
            "warn",
            "Refused requests",
            f"{names.tenant(each.tenant_id)}: {whole(each.requests)} in the last hour, "
            f"{whole(each.code_requests)} of them {each.code}{f' by {each.limit_name}' if each.limit_name else ''}.",
            (address("/refusals", {"tenant_id": each.tenant_id, "window": "hour"}), "Refusals"),
        )
        for each in found
    ]


async def _limits(context: ConsoleContext, page_request: PageRequest, now: datetime) -> list[Entry]:
    entries = []
    window = TimeRange(unix_ms(now - timedelta(days=1)), unix_ms(now))
    with typed_errors():
        tenants = await busiest_tenants(context.analytics, window, limit=MAX_TENANTS)
    for tenant_id in tenants:
        try:
            use = await page_request.actions.read("readLimitUse", {"tenant_id": tenant_id})
        except APIError as error:
            if error.status != 404:  # usage of a tenant that the database does not have
                raise
            continue
        counters = [each for each in use["data"] if is_near(each)]
        keys = [each["scope_id"] for each in counters if each["kind"] == ScopeKind.KEY]
        names = await names_of(context, page_request, tenants=[tenant_id], keys=keys) if counters else Names()
        entries += [_near(each, tenant_id, names) for each in counters]
    return entries


def is_near(counter: Mapping[str, Any]) -> bool:
    """Whether a limit, or prepaid credit, is nearly used up."""
    near = NEAR_CREDIT if counter["name"] == _CREDIT else NEAR_LIMIT
    return bool(counter["used"] >= near * counter["limit"])


def _near(counter: Mapping[str, Any], tenant_id: str, names: Names) -> Entry:
    name, limit, used = counter["name"], counter["limit"], counter["used"]
    scope = names.tenant(tenant_id)
    if counter["kind"] != ScopeKind.TENANT:
        of = names.key(counter["scope_id"]) if counter["kind"] == ScopeKind.KEY else counter["scope_id"]
        scope += f", {counter['kind']} {of}"
    tone = "bad" if counter["remaining"] <= 0 else "warn"
    text = (
        f"{scope}: {percent(used, limit)} of {WORDS[name].lower()} used." if limit else f"{scope}: {WORDS[name]} is 0."
    )
    page, action = ("credit", "Credit") if name == _CREDIT else ("limits", "Limits")
    what = "Credit" if name == _CREDIT else "Limit"
    return Entry(tone, what, text, (address(f"/tenants/{quote(tenant_id)}/{page}"), action))
