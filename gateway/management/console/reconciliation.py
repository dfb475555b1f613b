"""Reconciliation of the journal, the usage store and invoices."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.common.timestamps import utc_from_ms
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import moment_of
from gateway.management.console.names import names_of
from gateway.management.console.screens import Page, PageRequest, Screens
from gateway.management.operations.roles import READERS
from gateway.management.operations.timestamps import instant
from gateway.metering.reconciliation.reconciliation_monitor import Drift

MAX_SHOWN = 100
"""Findings of each kind on the page; the rest is counted, and the API has them all."""
_EVENTS: Mapping[str, str] = {
    "missing": "In the journal, not in the store",
    "doubled": "In the store under another's number, or in rows that differ",
    "altered": "In the store, though not as the journal has it",
    "unauthenticated": "In the store without a gateway's signature",
    "copies": "In the store more than once, and counted once: no drift",
}
_MONTHS: Mapping[str, str] = {
    "months": "Months whose invoice charges more than was used",
    "late": "Months with usage after their invoice, which the next one has: no drift",
}

EVERY_S = 30


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The last automatic comparison. `checked_at`: its end, as the API writes it; None before the first. `is_failing`:
    the one after it has failed."""

    checked_at: str | None
    is_failing: bool
    every_min: int
    drift: Drift


def last_check(context: ConsoleContext) -> LastCheck | None:
    """None: this gateway does not compare, as its events go to a store that it does not read."""
    books = context.books
    if books is None:
        return None
    checked_at = instant(utc_from_ms(int(books.checked_s * 1000))) if books.checked_s else None
    return LastCheck(checked_at, books.is_failing, round(books.every_s / 60), books.drift)


SCREENS = Screens()


@SCREENS.get("/reconciliation", "reconciliation", "Reconciliation", READERS, section="Money")
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    """Shows the last automatic comparison. Compares event by event only where a window is asked for: it reads much."""
    asked = page_request.query.given("start", "end")
    found: Any = None
    if "run" in page_request.query.texts():
        query = {name: moment for name, text in asked.items() if (moment := moment_of(text)) is not None}
        found = await page_request.actions.read("readReconciliation", query=query)
    tenants = {each["tenant_id"] for name in _MONTHS for each in (found or {}).get(name, ())}
    values = {
        "asked": asked,
        "last": last_check(context),
        "tenant": (await names_of(context, page_request, tenants=tenants)).tenant,
        "found": found,
        "every_s": 0 if found else EVERY_S,
        "events": _EVENTS,
        "months": _MONTHS,
        "most": MAX_SHOWN,
        "hour": lambda hour_ms: instant(utc_from_ms(hour_ms)),
        "sums": ("journal", "stored", "pending"),
    }
    return Page("reconciliation.html", values)
