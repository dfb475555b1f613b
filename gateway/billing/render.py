"""Invoices and drafts as CSV, JSON and a printable page. All money is text made from integers, exactly."""

import json
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from gateway.billing.invoices import CreditNote, Draft, Invoice, InvoiceLine
from gateway.billing.money import dollars, dollars_per_million
from gateway.spreadsheet import csv_text

LINE_COLUMNS = (
    "usage_month",
    "model",
    "tier",
    "price_version",
    "events",
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
    return _template().render(fields(document))


def fields(document: Draft | Invoice) -> dict[str, Any]:
    """The fields that every format shows, as plain values. Integers that may exceed 2**53 have a text next to them."""
    statement = document.statement
    common = {
        "tenant": statement.tenant_name,
        "tenant_id": statement.tenant_id,
        "month": str(statement.month),
        "lines": [{"line": index, **line_fields(line)} for index, line in enumerate(statement.lines, 1)],
        "events": statement.events,
        "digest": statement.digest,
        **_money("total", statement.total_nanodollars),
    }
    if isinstance(document, Draft):
        return {
            "number": None,
            "finalised_at": None,
            **common,
            "credit_notes": [],
            **_money("due", statement.total_nanodollars),
            "discrepancies": [str(discrepancy) for discrepancy in document.discrepancies],
            "open_months": [str(month) for month in document.open_months],
        }
    return {
        "number": document.number,
        "finalised_at": document.finalised_at.isoformat(timespec="seconds"),
        **common,
        "credit_notes": [note_fields(note) for note in document.credit_notes],
        **_money("due", document.due_nanodollars),
        "discrepancies": [],
        "open_months": [],
    }


def line_fields(line: InvoiceLine) -> dict[str, Any]:
    """The fields of a line, by `LINE_COLUMNS`."""
    return {
        "usage_month": str(line.key.usage_month),
        "model": line.key.served_model,
        "tier": line.key.tier_served,
        "price_version": line.key.price_version,
        "events": line.usage.events,
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
    environment.filters["count"] = lambda number: f"{number:,}"
    return environment.get_template("invoice.html")
