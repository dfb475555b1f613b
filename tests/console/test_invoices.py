"""Prices and invoices in the console: exact money, drafts, what is final, credit notes, files, paper."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.async_api import expect

from gateway.billing.month import Month
from gateway.billing.prices import Price
from gateway.metering.event import COLUMNS
from gateway.metering.sink.intake import EVENTS_TABLE, row_of
from tests.console.browser import Browsing
from tests.console.house import House
from tests.support.billing import an_event

LAST = Month.of(datetime.now(UTC)).plus(-2)
"""The last month that is certainly over, with the time in which late usage is waited for."""
TERMS = {
    "model": "m",
    "input": "0.15",
    "cached_input": "0.075",
    "output": "0.6",
    "multipliers": "premium 3\nstandard 1",
}
TOTAL = "0.000195001"
"""Dollars of what `used` records."""


async def used(console: House, whose: str = "acme", *, month: Month = LAST) -> None:
    """1,300 tokens of model m at fractions of a cent, and one of model n."""
    tenant_id = console.tenant[whose].id
    for terms in (TERMS, {"model": "n", "input": "0.001", "output": "0.001"}):
        since = (month.start - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
        answer = await console.post("/prices", "add", "billing", **terms, effective_from=since)
        assert answer.status_code in (303, 409), answer.text
    at = month.start + timedelta(days=9)
    events = (
        an_event(tenant_id, at, await price(console, "m", 150, 75, 600), (1000, 200, 100)),
        an_event(tenant_id, at, await price(console, "n", 1, 1, 1), (1, 0, 0)),
    )
    await console.services.analytics.insert(EVENTS_TABLE, COLUMNS, [row_of(event) for event in events])


async def price(console: House, model: str, *nanodollars: int) -> Price:
    headers = {"authorization": f"Bearer {console.keys['viewer']}"}
    answer = await console.http.get(f"/admin/v1/prices?model={model}", headers=headers)
    return Price(answer.json()["data"][0]["id"], *nanodollars)


async def finalised(console: House, whose: str = "acme") -> str:
    """The number of the invoice of last month."""
    await used(console, whose)
    path = f"/tenants/{console.tenant[whose].id}/draft"
    answer = await console.post(path, "finalise", "billing", month=str(LAST))
    assert answer.status_code == 303, answer.text
    return answer.headers["location"].rpartition("/")[2]


async def test_prices_are_added_and_listed_exactly(console: House) -> None:
    assert (await console.post("/prices", "add", "billing", **TERMS)).status_code == 303
    row = (await console.page("/prices?model=m", "viewer")).split("<tbody>")[1].split("</tbody>")[0]
    for said in ("0.15", "0.075", "0.60", "premium × 3"):
        assert said in row
    assert "tiny" not in row


@pytest.mark.parametrize(
    ("fields", "status", "at_fault"),
    [
        ({"input": "cheap"}, 400, "input"),
        ({"input": "0.15001"}, 400, "input"),
        ({"cached_input": "9"}, 400, "cached_input"),
        ({"output": ""}, 400, "output"),
        ({"multipliers": "premium"}, 400, "multipliers"),
        ({"multipliers": "premium three"}, 400, "multipliers"),
        ({"effective_from": "soon"}, 400, "effective_from"),
        ({"effective_from": "2001-01-01T00:00", "model": "tiny"}, 409, None),
    ],
)
async def test_an_error_stands_beside_its_field_and_what_was_typed_stays(
    console: House, fields: dict[str, str], status: int, at_fault: str | None
) -> None:
    answer = await console.post("/prices", "add", **TERMS | fields)
    assert answer.status_code == status
    assert 'role="alert"' in answer.text
    assert (f'class="note error" id="add-{at_fault}-note"' in answer.text) == (at_fault is not None)
    assert f'name="model" required value="{fields.get("model", "m")}"' in answer.text


async def test_a_month_is_drafted_made_final_once_and_credited(console: House) -> None:
    await used(console)
    tenant = console.tenant["acme"].id
    draft = await console.page(f"/tenants/{tenant}/draft?month={LAST}", "viewer")
    assert ">draft<" in draft
    assert "can be finalised then" not in draft
    assert f'<td class="number">{TOTAL}</td>' in draft
    fields = {"month": str(LAST), "once": "a-rendering"}
    answers = [await console.post(f"/tenants/{tenant}/draft", "finalise", "billing", **fields) for _ in range(2)]
    assert len({each.headers["location"] for each in answers}) == 1
    path = answers[0].headers["location"].removeprefix("/console")

    credit = {"dollars": "0.000000001", "reason": "a slow day", "once": "another"}
    for _ in range(2):
        assert (await console.post(path, "credit", "billing", **credit)).status_code == 303
    page = await console.page(path, "viewer")
    assert page.count("a slow day") == 1
    assert '<td class="number">-0.000000001</td>' in page
    assert '<td class="number">0.000195000</td>' in page, "as many decimals as the column's others"
    listed = await console.page(f"/invoices?month={LAST}", "viewer")
    assert f"${TOTAL}" in listed
    assert "$0.00<" in listed
    await console.page(f"/tenants/{tenant}/draft?month={LAST}", status=409)


async def owed(console: House) -> str:
    """The path of an open invoice of $150.00, to a customer with an address."""
    tenant = console.tenant["acme"].id
    party = {"name": "Acme GmbH", "address": "Hauptstraße 1\r\n10115 Berlin", "tax_id": "DE2"}
    assert (await console.post(f"/tenants/{tenant}", "bill_to", "billing", **party)).status_code == 303
    since = (LAST.start - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    assert (await console.post("/prices", "add", "billing", **TERMS, effective_from=since)).status_code == 303
    at = LAST.start + timedelta(days=9)
    event = an_event(tenant, at, await price(console, "m", 150, 75, 600), (10**9, 0, 0))
    await console.services.analytics.insert(EVENTS_TABLE, COLUMNS, [row_of(event)])
    answer = await console.post(f"/tenants/{tenant}/draft", "finalise", "billing", month=str(LAST))
    return answer.headers["location"].removeprefix("/console")


async def test_an_open_invoice_is_marked_as_paid(console: House) -> None:
    path = await owed(console)
    page = await console.page(path, "acme")
    for said in (">open<", "Acme GmbH", "<p>Hauptstraße 1</p>", "<p>10115 Berlin</p>", "Tax id DE2", "$150.00"):
        assert said in page
    assert 'name="act" value="pay"' not in page + await console.page(path, "viewer")
    assert (await console.post(path, "pay", "viewer")).status_code == 403
    for _ in range(2):
        answer = await console.post(path, "pay", "billing", reference="transfer 7", once="a-rendering")
        assert answer.status_code == 303
    page = await console.page(path, "billing")
    for said in (">paid<", "transfer 7", "<dd>-150.00</dd>", '<dd class="sum">$0.00</dd>'):
        assert said in page
    assert 'name="act" value="void"' not in page
    assert 'name="act" value="credit"' in page
    assert (await console.post(path, "void", "billing", reason="late")).status_code == 409
    number = path.rpartition("/")[2]
    assert number in await console.page(f"/invoices?status=paid&tenant_id={console.tenant['acme'].id}")
    assert number not in await console.page("/invoices?status=open")


async def test_nothing_of_a_void_invoice_is_owed(console: House) -> None:
    path = await owed(console)
    assert 'id="void-reason-note"' in (await console.post(path, "void", "billing", reason="")).text
    assert (await console.post(path, "void", "billing", reason="a test tenant")).status_code == 303
    page = await console.page(path, "billing")
    for said in (">void<", "a test tenant", "nothing is owed", '<dd class="sum">$0.00</dd>'):
        assert said in page
    for act in ("pay", "void", "credit"):
        assert f'name="act" value="{act}"' not in page


async def test_invoices_are_found_by_the_name_of_their_tenant(console: House) -> None:
    mine, theirs = await finalised(console), await finalised(console, "globex")
    for asked in (console.tenant["globex"].id, "globex"):
        page = await console.page(f"/invoices?tenant_id={asked}")
        assert theirs in page
        assert mine not in page
    assert "No tenant is named unknown." in await console.page("/invoices?tenant_id=unknown", status=400)
    assert f'<option value="{console.tenant["acme"].id}">acme</option>' in await console.page("/invoices")


async def test_a_month_that_runs_is_not_final(console: House) -> None:
    path = f"/tenants/{console.tenant['acme'].id}/draft"
    now = str(Month.of(datetime.now(UTC)))
    page = await console.page(path)
    assert f"Draft of {now}" in page
    assert "can be finalised then" in page
    assert "and cannot be changed" not in page, "no form that would be refused"
    answer = await console.post(path, "finalise", month=now)
    assert answer.status_code == 409
    assert 'role="alert"' in answer.text


async def test_a_credit_note_that_cannot_be(console: House) -> None:
    path = f"/invoices/{await finalised(console)}"
    for fields, status, at_fault in (
        ({"dollars": "1"}, 409, "dollars"),
        ({"dollars": "0"}, 400, "dollars"),
        ({"dollars": ""}, 400, "dollars"),
        ({"reason": ""}, 400, "reason"),
        ({"line": "7"}, 400, "line"),
        ({"line": "first"}, 400, "line"),
    ):
        answer = await console.post(path, "credit", **{"dollars": "0.0001", "reason": "a slow day"} | fields)
        assert (answer.status_code, fields) == (status, fields)
        assert f'class="note error" id="credit-{at_fault}-note"' in answer.text
    assert "a slow day" not in await console.page(path, "viewer")


async def test_an_invoice_is_kept_as_a_file(console: House) -> None:
    number = await finalised(console)
    for form, media_type, holds in (
        ("json", "application/json", '"total_nanodollars": 195001'),
        ("csv", "text/csv", ",usage,1,"),
        ("html", "text/html", TOTAL),
    ):
        for who in ("viewer", "acme"):
            answer = await console.get(f"/invoices/{number}/file?format={form}", who)
            assert answer.headers["content-type"].startswith(media_type)
            assert f"{number}.{form}" in answer.headers["content-disposition"]
            assert holds in answer.text


async def test_a_tenant_reads_its_own_invoices_and_no_other(console: House) -> None:
    mine, theirs = await finalised(console), await finalised(console, "globex")
    page = await console.page("/invoices", "acme")
    assert mine in page
    assert theirs not in page
    assert 'name="act"' not in await console.page(f"/invoices/{mine}", "acme")
    for who in ("viewer", "acme"):
        refused = await console.post(f"/invoices/{mine}", "credit", who, dollars="0.0001", reason="x")
        assert refused.status_code == 403
    assert TOTAL in await console.page(f"/invoices/{mine}", "acme")
    for path in (f"/invoices/{theirs}", f"/invoices/{theirs}/file?format=json", f"/invoices/{theirs}/file?format=html"):
        missing = await console.page(path.replace(theirs, "INV-9999"), "acme", 404)
        answer = await console.page(path, "acme", 404)
        assert _told(answer) == _told(missing)
    await used(console, month=Month.of(datetime.now(UTC)))
    assert "Draft of" in await console.page("/draft", "acme")


def _told(page: str) -> Any:
    """An error page but for the request's id."""
    return page.split('class="card"')[1].split("Request <code>")[0]


async def test_an_invoice_on_paper_is_an_invoice_alone(browsing: Browsing) -> None:
    number = await finalised(browsing.house)
    page = await browsing.page("billing", theme="dark")
    await page.goto(f"/console/invoices/{number}")
    await expect(page.get_by_role("button", name="Print")).to_be_visible()
    await page.emulate_media(media="print")
    for gone in (
        page.get_by_role("navigation").first,
        page.get_by_role("button", name="Print"),
        page.locator("form").first,
    ):
        await expect(gone).to_be_hidden()
    await expect(page.get_by_role("heading", level=1)).to_have_text(f"Invoice {number}")
    await expect(page.get_by_text(TOTAL).first).to_be_visible()
    assert await page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    pdf = await page.pdf(prefer_css_page_size=True)
    assert b"/MediaBox [0 0 594" in pdf or b"/MediaBox [0 0 595" in pdf
    assert pdf.count(b"/Type /Page\n") == 1
