"""Invoices and drafts as CSV, JSON and a printable page. All money is text made from integers, exactly.

CSV has the exact lines and credit notes. JSON and the page have the payable amounts in cents, too.
"""

import json
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from gateway.billing.invoices import CreditNote, Draft, Invoice, InvoiceLine, PayableAmounts, payable_amounts
from gateway.billing.money import NANODOLLARS_PER_CENT, at_decimals, decimals_of, dollars, dollars_per_million
from gateway.billing.terms import InvoiceTerms, percent_text
from gateway.common.party import Party
from gateway.spreadsheet import csv_text

LINE_COLUMNS = (
    "usage_month",
    "model",
    "tier",
    "price_version",
    "events",
    "estimated_events",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "input_dollars_per_million",
    "cached_dollars_per_million",
    "output_dollars_per_million",
    "amount_dollars",
    "amount_nanodollars",
)


def as_csv(document: Draft | Invoice) -> str:
    """The document as CSV: a header, a row per line, and a row with a negative amount per credit note."""
    number = document.number if isinstance(document, Invoice) else "draft"
    month = document.statement.month
    rows: list[dict[str, Any]] = []
    for index, line in enumerate(document.statement.lines, 1):
        kind = "usage" if line.key.usage_month == month else "adjustment"
        rows.append({"document": number, "kind": kind, "line": index, **line_fields(line)})
    for note in document.credit_notes if isinstance(document, Invoice) else ():
        amount = -note.amount_nanodollars
        rows.append(
            {
                "document": note.number,
                "kind": "credit",
                "line": note.line or "",
                "amount_dollars": dollars(amount),
                "amount_nanodollars": amount,
                "reason": note.reason,
            }
        )
    return csv_text(("document", "kind", "line", *LINE_COLUMNS, "reason"), rows)


def as_json(document: Draft | Invoice) -> str:
    """The document as JSON."""
    return json.dumps(fields(document), indent=2) + "\n"


def as_html(document: Draft | Invoice) -> str:
    """The document as a self-contained page without scripts."""
    shown = fields(document)
    exact = [each["amount_nanodollars"] for each in (*shown["lines"], *shown["credit_notes"])]
    return _template().render(shown, decimals=decimals_of([*exact, shown["due_nanodollars"]]))


def fields(document: Draft | Invoice) -> dict[str, Any]:
    """The fields that every format shows, as plain values. Integers that may exceed 2**53 have a text next to them."""
    statement = document.statement
    common = {
        "tenant": statement.tenant_name,
        "tenant_id": statement.tenant_id,
        "month": str(statement.month),
        **_terms_fields(document.terms),
        "lines": [{"line": index, **line_fields(line)} for index, line in enumerate(statement.lines, 1)],
        "events": statement.events,
        "digest": statement.digest,
        **_money("total", statement.total_nanodollars),
    }
    if isinstance(document, Draft):
        return {
            "number": None,
            "status": "draft",
            "finalised_at": None,
            "due_date": None,
            "settled_at": None,
            "settlement_note": None,
            **common,
            "credit_notes": [],
            **_money("due", statement.total_nanodollars),
            "payable": payable_fields(payable_amounts(statement.total_nanodollars, 0, document.terms.tax_rate)),
            "discrepancies": [str(each) for each in document.discrepancies],
            "open_months": [str(month) for month in document.open_months],
        }
    settlement = document.settlement
    return {
        "number": document.number,
        "status": document.status.value,
        "finalised_at": document.finalised_at.isoformat(timespec="seconds"),
        "due_date": None if document.due_date is None else document.due_date.isoformat(),
        "settled_at": None if settlement is None else settlement.at.isoformat(timespec="seconds"),
        "settlement_note": None if settlement is None else settlement.note,
        **common,
        "credit_notes": [note_fields(note) for note in document.credit_notes],
        **_money("due", document.due_nanodollars),
        "payable": payable_fields(document.amounts),
        "discrepancies": [],
        "open_months": [],
    }


def payable_fields(amounts: PayableAmounts) -> dict[str, Any]:
    """The fields of the amounts in whole cents."""
    cents = {
        "net": amounts.issued.net_cents,
        "tax": amounts.issued.tax_cents,
        "total": amounts.issued.total_cents,
        "credited": amounts.credited_cents,
        "paid": amounts.paid_cents,
        "due": amounts.due_cents,
    }
    shown: dict[str, Any] = {"currency": "usd"}
    for name, amount in cents.items():
        shown |= {f"{name}_cents": amount, f"{name}_dollars": dollars(amount * NANODOLLARS_PER_CENT)}
    return shown


def party_fields(party: Party) -> dict[str, str]:
    """The fields of an issuer or a bill-to."""
    return {"name": party.name, "address": party.address, "tax_id": party.tax_id}


def _terms_fields(terms: InvoiceTerms) -> dict[str, Any]:
    return {
        "issuer": party_fields(terms.issuer),
        "bill_to": party_fields(terms.bill_to),
        "tax_percent": percent_text(terms.tax_rate),
    }


def line_fields(line: InvoiceLine) -> dict[str, Any]:
    """The fields of a line, by `LINE_COLUMNS`."""
    return {
        "usage_month": str(line.key.usage_month),
        "model": line.key.served_model,
        "adapter_id": line.key.adapter_id,
        "tier": line.key.tier_served,
        "price_version": line.key.price_version,
        "events": line.usage.events,
        "estimated_events": line.usage.estimated_events,
        "input_tokens": line.usage.input_tokens,
        "cached_tokens": line.usage.cached_tokens,
        "output_tokens": line.usage.output_tokens,
        "input_dollars_per_million": dollars_per_million(line.price.prompt),
        "cached_dollars_per_million": dollars_per_million(line.price.cached_prompt),
        "output_dollars_per_million": dollars_per_million(line.price.completion),
        **_money("amount", line.amount_nanodollars),
    }


def note_fields(note: CreditNote) -> dict[str, Any]:
    """The fields of a credit note."""
    return {
        "number": note.number,
        "invoice": note.invoice_number,
        "line": note.line,
        **_money("amount", note.amount_nanodollars),
        "reason": note.reason,
        "created_at": note.created_at.isoformat(timespec="seconds"),
    }


def _money(name: str, nanodollars: int) -> dict[str, Any]:
    return {f"{name}_dollars": dollars(nanodollars), f"{name}_nanodollars": nanodollars}


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("gateway.billing"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["at_decimals"] = at_decimals
    environment.filters["count"] = lambda number: f"{number:,}"
    return environment.get_template("invoice.html")
