"""turnpike credit"""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsJson, TenantOption
from gateway.management.cli.output import print_json, print_list

if TYPE_CHECKING:
    from gateway.management.client import AdminClient


@managed
def grant(
    client: "AdminClient",
    amount: Annotated[
        str, typer.Argument(metavar="DOLLARS", help="Amount, as in 100 or 12.50. A correction is negative.")
    ],
    tenant: TenantOption,
    reason: Annotated[str, typer.Option("--reason", help="Reason for the grant.")],
    once: Annotated[
        str | None,
        typer.Option(
            "--once", metavar="KEY", help="Idempotency key: a repeated grant with the same key has no effect."
        ),
    ] = None,
) -> None:
    """Record a payment in advance. From its first grant on, a tenant is served up to the amount granted."""
    from gateway.billing.money import parse_dollars

    body = {"nanodollars": parse_dollars(amount), "reason": reason, "idempotency_key": once}
    entry = client.change("grantCredit", client.tenant_path(tenant), body)
    typer.echo(f"granted {entry['amount_dollars']} dollars to {tenant} ({entry['idempotency_key']})")


@managed
def list_all(client: "AdminClient", tenant: TenantOption, as_json: AsJson = False) -> None:
    """List a tenant's grants and corrections."""
    columns = (
        ("CREATED AT", "created_at"),
        ("DOLLARS", "amount_dollars"),
        ("REASON", "reason"),
        ("ONCE", "idempotency_key"),
    )
    empty = f"tenant {tenant} pays by invoice: turnpike credit grant DOLLARS --tenant {tenant} --reason TEXT"
    print_list(client.items("listCredit", client.tenant_path(tenant)), columns, as_json=as_json, empty=empty)


@managed
def balance(client: "AdminClient", tenant: TenantOption, as_json: AsJson = False) -> None:
    """Show a tenant's remaining credit, and its spending of this month against its budget."""
    found = client.read("readBalance", client.tenant_path(tenant))
    if as_json:
        print_json(found)
        return
    if found["prepaid"]:
        typer.echo(
            f"{found['left_dollars']} dollars left: {found['granted_dollars']} granted, {found['spent_dollars']} spent"
        )
    else:
        typer.echo("no credit was granted: the tenant pays by invoice")
    budget = found["month_budget_dollars"]
    of_budget = "" if budget is None else f" of a budget of {budget}"
    typer.echo(f"{found['month_spent_dollars']} dollars spent in {found['month']}{of_budget}")
