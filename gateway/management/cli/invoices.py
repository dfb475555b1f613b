"""turnpike invoice"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import OperatorError
from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsJson, TenantFilter, TenantOption
from gateway.management.cli.output import Column, print_json, print_list

if TYPE_CHECKING:
    from gateway.management.client import AdminClient


class Status(StrEnum):
    OPEN = "open"
    PAID = "paid"
    VOID = "void"
    OVERDUE = "overdue"


class Format(StrEnum):
    JSON = "json"
    CSV = "csv"
    HTML = "html"


MonthArgument = Annotated[str, typer.Argument(metavar="MONTH", help="Month in UTC, as in 2026-11.")]
NumberArgument = Annotated[str, typer.Argument(metavar="NUMBER", help="Invoice number, as in INV-2026-11-000001.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Output format; html is a printable page.")]


@managed
def draft(
    client: "AdminClient", month: MonthArgument, tenant: TenantOption, format: FormatOption = Format.JSON
) -> None:
    """Show the draft of a tenant's invoice for a month, as of now."""
    path = {**client.tenant_path(tenant), "month": parse_month(month)}
    _print(client.read("draftInvoice", path, {"format": format.value}))


@managed
def finalise(client: "AdminClient", month: MonthArgument, tenant: TenantFilter = None, as_json: AsJson = False) -> None:
    """Make the final invoices of a past month, of all tenants or of one, and list them. Repeating the command changes
    nothing.

    Usage that arrives later is on the next invoice. If usage and its cost do not match, no invoice is made.
    """
    from gateway.management.client import Refused

    body = {"month": parse_month(month)}
    made: list[Any] = []
    failed: list[str] = []
    for each in client.items("listTenants") if tenant is None else [_of(client, tenant)]:
        try:
            answer = client.change("finaliseInvoice", {"tenant_id": each["id"]}, body)
        except Refused as error:
            if error.code != "books_differ":
                raise
            failed.append(f"{each['name']}: {error}")
        else:
            if answer["invoice"] is not None:
                made.append(answer["invoice"])
    if made or not failed:
        print_list(
            made, _COLUMNS, as_json=as_json, empty=f"no tenant has usage in {month}: there is nothing to invoice"
        )
    if failed:
        raise OperatorError("not invoiced: " + "; ".join(failed))


@managed
def show(client: "AdminClient", number: NumberArgument, format: FormatOption = Format.JSON) -> None:
    """Show a final invoice, with its credit notes."""
    _print(client.read("readInvoice", {"invoice_number": number}, {"format": format.value}))


@managed
def list_all(
    client: "AdminClient",
    tenant: TenantFilter = None,
    month: Annotated[str | None, typer.Option("--month", help="Only this month, as in 2026-11.")] = None,
    status: Annotated[Status | None, typer.Option("--status", help="Only invoices of this status.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the final invoices."""
    query = {
        **client.tenant_query(tenant),
        "month": None if month is None else parse_month(month),
        "status": None if status is None else status.value,
    }
    empty = "no final invoices: turnpike invoice finalise MONTH makes those of a past month"
    print_list(client.items("listInvoices", query=query), _COLUMNS, as_json=as_json, empty=empty)


@managed
def credit(
    client: "AdminClient",
    number: NumberArgument,
    amount: Annotated[str, typer.Option("--amount", metavar="D", help="Dollars, as in 12.50.")],
    reason: Annotated[str, typer.Option("--reason", help="Reason, shown to the tenant.")],
    line: Annotated[int | None, typer.Option("--line", help="Line of the invoice to credit, counted from 1.")] = None,
) -> None:
    """Make a credit note for part of an invoice."""
    from gateway.billing.money import parse_dollars

    body = {"nanodollars": parse_dollars(amount), "reason": reason, "line": line}
    note = client.change("creditInvoice", {"invoice_number": number}, body)
    typer.echo(f"made {note['number']}: {note['amount_dollars']} dollars of {note['invoice']}")


@managed
def pay(
    client: "AdminClient",
    number: NumberArgument,
    reference: Annotated[str | None, typer.Option("--reference", help="Reference of the payment.")] = None,
) -> None:
    """Mark an open invoice as paid in full. Repeating the command changes nothing."""
    invoice = client.change("payInvoice", {"invoice_number": number}, {"reference": reference})
    typer.echo(f"{number} is paid: {invoice['payable']['paid_dollars']} dollars")


@managed
def void(
    client: "AdminClient",
    number: NumberArgument,
    reason: Annotated[str, typer.Option("--reason", help="Reason, shown to the tenant.")],
) -> None:
    """Mark an open invoice as void: nothing of it is owed, and its usage is not charged again."""
    client.change("voidInvoice", {"invoice_number": number}, {"reason": reason})
    typer.echo(f"{number} is void")


def parse_month(text: str) -> str:
    """
    Raises:
        InvalidMonth: it is none.
    """
    from gateway.billing.month import Month

    return str(Month.parse(text))


def _of(client: "AdminClient", tenant: str) -> Mapping[str, str]:
    return {"id": client.tenant_id(tenant), "name": tenant}


def _print(document: Any) -> None:
    """A document of another type is text."""
    if isinstance(document, str):
        typer.echo(document, nl=not document.endswith("\n"))
    else:
        print_json(document)


def _payable(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda invoice: str(invoice["payable"][f"{name}_dollars"])


_COLUMNS: tuple[Column, ...] = (
    ("NUMBER", "number"),
    ("TENANT", "tenant"),
    ("MONTH", "month"),
    ("STATUS", "status"),
    ("DUE DATE", lambda invoice: invoice["due_date"] or "-"),
    ("EXACT", "total_dollars"),
    ("TOTAL", _payable("total")),
    ("CREDITED", _payable("credited")),
    ("PAID", _payable("paid")),
    ("DUE", _payable("due")),
)
