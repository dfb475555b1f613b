"""Invoices on paper: exact, and nothing in them is taken for code."""

import csv
import io
import json
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser

import pytest

from gateway.billing.invoices import CreditNote, Discrepancy, Draft, Invoice, InvoiceLine, Statement
from gateway.billing.month import Month
from gateway.billing.prices import Price
from gateway.billing.render import as_csv, as_html, as_json
from gateway.billing.usage import LineKey, UsageSum
from tests.support.billing import utc

OCTOBER, NOVEMBER = Month(2026, 10), Month(2026, 11)
NAME = "<script>alert(1)</script>&'\""


def a_line(month: Month, model: str = "m") -> InvoiceLine:
    price = Price(f"{model}@2026-01-01T00:00:00.000Z", 150, 75, 600)
    usage = UsageSum(3, 9007199254740993, 2, 1, 150 * 9007199254740993 + 75 * 2 + 600, 7, 2)
    return InvoiceLine(LineKey(month, model, "standard", price.version), usage, price)


STATEMENT = Statement("t", "acme", NOVEMBER, (a_line(OCTOBER), a_line(NOVEMBER)))
NOTE = CreditNote("CN-2026-12-000001", "INV-2026-11-000001", 2, 12_500_000_001, "=a slow day", utc("2026-12-03"))
INVOICE = Invoice("INV-2026-11-000001", STATEMENT, utc("2026-12-01T01:00"), (NOTE,))
DRAFT = Draft(STATEMENT, (Discrepancy(a_line(NOVEMBER).key, "it does not add up"),), (Month(2026, 9),))


class Page(HTMLParser):
    """The text and the names of the elements of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_json_is_exact() -> None:
    shown = json.loads(as_json(INVOICE))
    assert shown["number"] == "INV-2026-11-000001"
    assert [line["usage_month"] for line in shown["lines"]] == ["2026-10", "2026-11"]
    assert shown["lines"][0]["input_tokens"] == 9007199254740993
    assert (shown["lines"][0]["events"], shown["lines"][0]["estimated_events"]) == (3, 2)
    assert shown["lines"][0]["amount_nanodollars"] == 1351079888211149700
    assert shown["lines"][0]["amount_dollars"] == "1351079888.2111497"
    assert shown["total_dollars"] == "2702159776.4222994"
    assert shown["due_dollars"] == "2702159763.922299399"
    assert shown["digest"] == f"{14:032x}"
    assert shown["credit_notes"][0]["amount_dollars"] == "12.500000001"


def test_csv_adds_up_to_what_is_due() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(INVOICE))))
    assert [row["kind"] for row in rows] == ["adjustment", "usage", "credit"]
    assert sum(int(row["amount_nanodollars"]) for row in rows) == INVOICE.due_nanodollars
    assert sum(Decimal(row["amount_dollars"]) for row in rows) == Decimal(INVOICE.due_nanodollars).scaleb(-9)
    assert (rows[0]["input_dollars_per_million"], rows[2]["reason"]) == ("0.15", "'=a slow day")


def test_no_cell_of_a_csv_is_a_formula() -> None:
    line = a_line(NOVEMBER, '=HYPERLINK("http://x","m")')
    invoice = Invoice("INV", Statement("t", "acme", NOVEMBER, (line,)), utc("2026-12-01"), (NOTE,))
    row, credit = csv.DictReader(io.StringIO(as_csv(invoice)))
    assert row["model"] == f"'{line.key.served_model}"
    assert row["price_version"] == f"'{line.key.price_version}"
    assert credit["amount_dollars"] == "-12.500000001", "a number stays one"


def test_a_page_shows_what_is_owed() -> None:
    page = Page(as_html(INVOICE))
    for text in ("Invoice INV-2026-11-000001", "Adjustment for 2026-10", "2702159776.4222994", "2702159763.922299399"):
        assert text in page.text
    assert "9,007,199,254,740,993" in page.text


def test_a_page_says_how_many_requests_are_estimated() -> None:
    exact = replace(a_line(NOVEMBER), usage=replace(a_line(NOVEMBER).usage, estimated_events=0))
    assert "2 with estimated tokens" in Page(as_html(INVOICE)).text
    statement = replace(STATEMENT, lines=(exact,))
    assert "estimated" not in Page(as_html(replace(INVOICE, statement=statement))).text


def test_a_draft_says_that_it_is_one_and_what_is_wrong() -> None:
    page = Page(as_html(DRAFT))
    assert "Draft invoice" in page.text
    assert "it does not add up" in page.text
    assert "Not invoiced yet: 2026-09" in page.text
    shown = json.loads(as_json(DRAFT))
    assert shown["number"] is None
    assert shown["open_months"] == ["2026-09"]
    assert "it does not add up" in shown["discrepancies"][0]
    assert all(row["document"] == "draft" for row in csv.DictReader(io.StringIO(as_csv(DRAFT))))


@pytest.mark.parametrize("document", [INVOICE, DRAFT])
def test_a_page_needs_nothing_else(document: Invoice | Draft) -> None:
    page = Page(as_html(document))
    assert not page.tags & {"script", "link", "img", "iframe"}
    assert not page.attributes & {"src", "href", "onclick", "onload"}


def test_no_text_is_taken_for_html() -> None:
    lines = (a_line(NOVEMBER, NAME),)
    note = CreditNote("CN", "INV", None, 1, NAME, utc("2026-12-03"))
    page = Page(as_html(Invoice(NAME, Statement("t", NAME, NOVEMBER, lines), utc("2026-12-01"), (note,))))
    assert "script" not in page.tags
    assert page.text.count(NAME) >= 4


def test_no_html_is_lost_in_a_draft() -> None:
    draft = Draft(Statement("t", NAME, NOVEMBER, ()), (Discrepancy(a_line(NOVEMBER, NAME).key, NAME),), ())
    page = Page(as_html(draft))
    assert "script" not in page.tags
    assert page.text.count(NAME) >= 3
