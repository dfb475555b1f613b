"""Conditions that need attention are on the first page, with a link to the remedy, for administrators alone."""

import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert

from gateway.admission import Demand, Measure, Quota, Scope
from gateway.analytics import AnalyticsAway
from gateway.billing.tables import CreditNoteRow, InvoiceRow, InvoiceSettlementRow
from gateway.management.console.attention import is_near
from gateway.metering.reconciliation.reconciliation_monitor import Drift
from gateway.tenancy import ScopeKind
from tests.console.events import ago_ms, of_tenant, used
from tests.console.house import ACME, GLOBEX, House
from tests.console.html import text
from tests.support.refusal_samples import refusal, store_refusals


async def entries(console: House) -> list[tuple[str, str]]:
    """The text of each entry, and where its link leads."""
    page = await console.page("/overview/attention", "viewer")
    items = re.findall(r"<li>(.*?)</li>", page, re.DOTALL)
    return [(text(item), re.findall(r'href="(.*?)"', item)[0]) for item in items]


def path_of(console: House, name: str, page: str) -> str:
    return f"/console/tenants/{console.tenant[name].id}/{page}"


async def test_an_installation_without_trouble_has_no_entry(console: House) -> None:
    await used(console, of_tenant(console, ACME, 1, ago_ms(minutes=5)))
    assert await entries(console) == []
    assert "Needs attention" not in await console.page("")


async def test_tenants_refused_in_the_last_hour(console: House) -> None:
    of_globex = {"tenant_id": console.tenant[GLOBEX].id}
    await store_refusals(
        console.services.analytics,
        [
            refusal(1, ago_ms(minutes=50), **of_globex, requests=2),
            refusal(2, ago_ms(minutes=5), **of_globex, code="model_not_found", outcome="refused", limit_name=""),
            refusal(3, ago_ms(minutes=70), tenant_id=console.tenant[ACME].id),
        ],
    )
    [(said, link)] = await entries(console)
    assert "globex: 3 in the last hour, 2 of them rate_limit_exceeded by tenant.requests_per_minute." in said
    assert link.startswith(f"/console/refusals?tenant_id={console.tenant[GLOBEX].id}")


async def test_limits_that_are_nearly_used_up(console: House) -> None:
    await used(console, of_tenant(console, ACME, 1, ago_ms(minutes=5)))
    path = f"/tenants/{console.tenant[ACME].id}/limits"
    await console.post(path, "state", kind="tenant", tokens_per_day="1000", requests_per_minute="10")
    scope = Scope(console.tenant[ACME].id, ScopeKind.TENANT, "", Measure.TOKENS_PER_DAY)
    wanted = Demand(Quota(scope, 1000), 0, 1)
    hold = await console.services.limiter.hold("first", (wanted,), minimum_tokens=1, desired_tokens=799)
    assert await entries(console) == []
    await console.services.limiter.hold("second", (wanted,), minimum_tokens=1, desired_tokens=1)
    [(said, link)] = await entries(console)
    assert "acme: 80.0 % of " in said
    assert link == path_of(console, ACME, "limits")
    await console.services.limiter.settle(hold, 799)


@pytest.mark.parametrize(
    ("name", "limit", "used", "near"),
    [
        ("tokens_per_day", 1000, 799, False),
        ("tokens_per_day", 1000, 800, True),
        ("credit_nanodollars", 1000, 899, False),
        ("credit_nanodollars", 1000, 900, True),
        ("concurrent", 0, 0, True),
    ],
)
def test_what_is_near(name: str, limit: int, used: int, near: bool) -> None:
    assert is_near({"name": name, "limit": limit, "used": used}) is near


def an_invoice(console: House, sequence: int, due: date | None, **fields: Any) -> dict[str, Any]:
    return {
        "number": f"INV-2026-01-{sequence:06}",
        "tenant_id": console.tenant[ACME].id,
        "tenant_name": ACME,
        "month": f"2026-{sequence:02}",
        "sequence": 1,
        "total_nanodollars": 1_234_500_000_000,
        "events": 1,
        "digest": "0" * 32,
        "finalised_at": datetime.now(UTC) - timedelta(days=60),
        "due_date": due,
        "tax_rate": 19_000,
    } | fields


async def test_invoices_that_are_overdue(console: House) -> None:
    """Exact to the cent: tax and credit notes are in it, and what is paid, void, not yet due or without a due date is
    not."""
    today = datetime.now(UTC).date()
    late = today - timedelta(days=1)
    settled = {"amount_cents": 0, "note": "", "created_at": datetime.now(UTC)}
    invoices = [
        an_invoice(console, 1, late),
        an_invoice(console, 2, late, total_nanodollars=5_000_000),  # half a cent is one, and has no tax
        an_invoice(console, 3, late),
        an_invoice(console, 4, late),
        an_invoice(console, 5, today),
        an_invoice(console, 6, None),
    ]
    async with console.admin.context.database.begin() as connection:
        await connection.execute(insert(InvoiceRow), invoices[4:])
    assert await entries(console) == []
    async with console.admin.context.database.begin() as connection:
        await connection.execute(insert(InvoiceRow), invoices[:4])
        for number, status in ((3, "paid"), (4, "void")):
            settlement = settled | {"invoice_number": f"INV-2026-01-{number:06}", "status": status}
            await connection.execute(insert(InvoiceSettlementRow).values(settlement))
    [(said, link)] = await entries(console)
    assert "2 invoices are past the due date: $1469.07 is due." in said
    assert link == "/console/invoices?status=overdue"
    note = {"number": "CN-1", "invoice_number": "INV-2026-01-000001", "month": "2026-01", "sequence": 1}
    note |= {"amount_nanodollars": 1_000_000_000_000, "reason": "an outage", "created_at": datetime.now(UTC)}
    async with console.admin.context.database.begin() as connection:
        await connection.execute(insert(CreditNoteRow).values(note))
    [(said, _)] = await entries(console)
    assert "$279.07 is due." in said
    listed = await console.page(link.removeprefix("/console"), "viewer")
    assert set(re.findall(r"INV-2026-01-\d{6}", listed)) == {"INV-2026-01-000001", "INV-2026-01-000002"}


async def test_drift_of_the_last_comparison(console: House) -> None:
    books = console.services.books
    assert books is not None
    books.drift = Drift(hours=2, missing=3, doubled=1, altered=0)
    [(said, link)] = await entries(console)
    assert "differ in 2 hours: 3 events missing, 1 doubled, 0 altered" in said
    assert link == "/console/reconciliation?run=yes"


async def test_a_backlog_that_is_not_delivered(console: House, monkeypatch: pytest.MonkeyPatch) -> None:
    relay = console.services.relay
    assert relay is not None
    monkeypatch.setattr(type(relay), "failing_s", 10.0)
    monkeypatch.setattr(type(relay), "backlog_events", 1234)
    relay.last_error = "the store is away"
    [(said, link)] = await entries(console)
    assert "1,234 usage events wait" in said
    assert "the store is away" in said
    assert link == "/console/reconciliation"


async def test_a_served_model_without_a_price(console: House, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {**console.engine.models, "dear": next(iter(console.engine.models.values()))}
    monkeypatch.setattr(console.engine, "models", models)
    [(said, link)] = await entries(console)
    assert "The model dear is served and has no price" in said
    assert link == "/console/prices"


async def test_a_store_that_is_away_is_an_entry(console: House, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> None:
        raise AnalyticsAway("away")

    monkeypatch.setattr(console.services.analytics, "query", away)
    [(said, _)] = await entries(console)
    assert said.startswith("Stores")


async def test_no_tenant_sees_it(console: House) -> None:
    assert (await console.get("/overview/attention", ACME)).status_code == 403
    books = console.services.books
    assert books is not None
    books.drift = replace(Drift(), hours=2)
    assert "Needs attention" in await console.page("")
    assert "Needs attention" not in await console.page("", ACME)
