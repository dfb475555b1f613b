"""turnpike invoice"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from gateway.errors import OperatorError
from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_records
from gateway.management.cli.store import with_database, with_operations

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.billing.invoices import Draft, Invoice
    from gateway.billing.invoicing import Invoicing
    from gateway.config.settings import Settings
    from gateway.management.operations.local import LocalOperations

T = TypeVar("T")


class Format(StrEnum):
    JSON = "json"
    CSV = "csv"
    HTML = "html"


MonthArgument = Annotated[str, typer.Argument(metavar="MONTH", help="Month in UTC, as in 2026-11.")]
NumberArgument = Annotated[str, typer.Argument(metavar="NUMBER", help="Invoice number, as in INV-2026-11-000001.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Output format; html is a printable page.")]


@dataclass(frozen=True, slots=True)
class InvoiceSummary:
    """A line of `turnpike invoice list`, in dollars."""

    number: str
    tenant: str
    month: str
    total: str
    credited: str
    due: str
    finalised_at: str


def draft(
    tenant: Annotated[str, typer.Argument(metavar="TENANT")],
    month: MonthArgument,
    format: FormatOption = Format.JSON,
    data_dir: DataDir = None,
) -> None:
    """Show the draft of a tenant's invoice for a month, as of now."""
    from gateway.billing.month import Month

    chosen = Month.parse(month)
    made = _with_invoicing(settings_from(data_dir=data_dir), lambda invoicing: invoicing.draft(tenant, chosen))
    _print(made, format)


def finalise(
    month: MonthArgument,
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant. [default: all]")] = None,
    data_dir: DataDir = None,
) -> None:
    """Make the final invoices of a past month, and list them. Repeating the command changes nothing.

    Usage that arrives later is on the next invoice. If usage and its cost do not match, no invoice is made.
    """
    from gateway.analytics import migrate
    from gateway.billing.errors import BooksDiffer
    from gateway.billing.invoicing import InvoiceStore
    from gateway.billing.month import Month
    from gateway.management.operations.invoices import Finalising

    body = Finalising(str(Month.parse(month)))

    async def make(operations: "LocalOperations") -> tuple[list["Invoice"], list[str]]:
        context = operations.context
        await migrate(context.analytics)
        made: list[Invoice] = []
        failed: list[str] = []
        for name in await context.invoicing.tenant_names() if tenant is None else [tenant]:
            try:
                answer = await operations.change("finaliseInvoice", await operations.path_of(name), body)
            except BooksDiffer as error:
                failed.append(f"{name}: {error}")
            else:
                if answer["invoice"] is not None:
                    made.append(await InvoiceStore(context.database).get(answer["invoice"]["number"]))
        return made, failed

    made, failed = with_operations(settings_from(data_dir=data_dir), make)
    if made or not failed:
        _print_list(made, as_json=False)
    if failed:
        raise OperatorError("not invoiced: " + "; ".join(failed))


def show(number: NumberArgument, format: FormatOption = Format.JSON, data_dir: DataDir = None) -> None:
    """Show a final invoice, with its credit notes."""
    from gateway.billing.invoicing import InvoiceStore

    invoice = with_database(settings_from(data_dir=data_dir), lambda database: InvoiceStore(database).get(number))
    _print(invoice, format)


def list_all(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")] = None,
    month: Annotated[str | None, typer.Option("--month", help="Only this month, as in 2026-11.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the final invoices."""
    from gateway.billing.invoicing import InvoiceStore
    from gateway.billing.month import Month

    chosen = None if month is None else Month.parse(month)
    invoices = with_database(
        settings_from(data_dir=data_dir), lambda database: InvoiceStore(database).list(tenant_name=tenant, month=chosen)
    )
    _print_list(invoices, as_json=as_json)


def credit(
    number: NumberArgument,
    amount: Annotated[str, typer.Option("--amount", metavar="D", help="Dollars, as in 12.50.")],
    reason: Annotated[str, typer.Option("--reason", help="Reason, shown to the tenant.")],
    line: Annotated[int | None, typer.Option("--line", help="Line of the invoice to credit, counted from 1.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Make a credit note for part of an invoice."""
    from gateway.billing.money import parse_dollars
    from gateway.management.operations.invoices import Credit

    body = Credit(parse_dollars(amount), reason, line)
    note = with_operations(
        settings_from(data_dir=data_dir),
        lambda operations: operations.change("creditInvoice", {"invoice_number": number}, body),
    )
    typer.echo(f"made {note['number']}: {note['amount_dollars']} dollars of {note['invoice']}")


def _with_invoicing(settings: "Settings", action: Callable[["Invoicing"], Awaitable[T]]) -> T:
    """Run `action` on the books and the usage, the schemas of both brought up to date first."""
    from gateway.analytics import migrate, open_analytics
    from gateway.billing.analytics_usage import AnalyticsUsage
    from gateway.billing.invoicing import Invoicing

    async def run(database: "AsyncEngine") -> T:
        analytics = open_analytics(settings.analytics_url.get_secret_value())
        try:
            await migrate(analytics)
            return await action(Invoicing(database, AnalyticsUsage(analytics), grace_s=settings.invoice_grace_s))
        finally:
            await analytics.aclose()

    return with_database(settings, run)


def _print(document: "Draft | Invoice", format: Format) -> None:
    from gateway.billing import render

    text = {Format.JSON: render.as_json, Format.CSV: render.as_csv, Format.HTML: render.as_html}[format](document)
    typer.echo(text, nl=not text.endswith("\n"))


def _print_list(invoices: "list[Invoice] | tuple[Invoice, ...]", *, as_json: bool) -> None:
    from gateway.billing.money import dollars

    summaries = [
        InvoiceSummary(
            invoice.number,
            invoice.statement.tenant_name,
            str(invoice.statement.month),
            dollars(invoice.statement.total_nanodollars),
            dollars(invoice.credited_nanodollars),
            dollars(invoice.due_nanodollars),
            invoice.finalised_at.isoformat(timespec="seconds"),
        )
        for invoice in invoices
    ]
    print_records(summaries, ("number", "tenant", "month", "total", "credited", "due"), as_json=as_json)
