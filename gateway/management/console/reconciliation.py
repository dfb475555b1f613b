"""Whether what the journal wrote is what the store counts and what invoices say."""

from collections.abc import Mapping
from typing import Any

from gateway.common.timestamps import utc_from_ms
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import moment_of
from gateway.management.console.screens import Page, PageRequest, Screens
from gateway.management.operations.roles import READERS
from gateway.management.operations.timestamps import instant

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

SCREENS = Screens()


@SCREENS.get("/reconciliation", "reconciliation", "Reconciliation", READERS, section="Money")
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    """Compares only where a window is asked for: it reads much."""
    asked = page_request.query.given("start", "end")
    found: Any = None
    if "run" in page_request.query.texts():
        query = {name: moment for name, text in asked.items() if (moment := moment_of(text)) is not None}
        found = await page_request.actions.read("readReconciliation", query=query)
    values = {
        "asked": asked,
        "found": found,
        "events": _EVENTS,
        "months": _MONTHS,
        "most": MAX_SHOWN,
        "hour": lambda hour_ms: instant(utc_from_ms(hour_ms)),
        "sums": ("journal", "stored", "pending"),
    }
    return Page("reconciliation.html", values)
