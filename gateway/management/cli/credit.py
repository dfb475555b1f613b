"""turnpike credit"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_records
from gateway.management.cli.store import with_database, with_operations

if TYPE_CHECKING:
    from gateway.management.operations.local import LocalOperations

TenantOption = Annotated[str, typer.Option("--tenant", help="The tenant's name.")]


@dataclass(frozen=True, slots=True)
class EntryLine:
    """A line of `turnpike credit list`, in dollars."""

    created_at: str
    amount: str
    reason: str
    once: str


def grant(
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
    data_dir: DataDir = None,
) -> None:
    """Record a payment in advance. From its first grant on, a tenant is served up to the amount granted."""
    from gateway.billing.money import dollars, parse_dollars
    from gateway.common.ids import new_event_id
    from gateway.management.operations.credit import Grant

    nanodollars = parse_dollars(amount)
    key = once or str(new_event_id())

    async def grant(operations: "LocalOperations") -> None:
        await operations.change("grantCredit", await operations.path_of(tenant), Grant(nanodollars, reason, key))

    with_operations(settings_from(data_dir=data_dir), grant)
    typer.echo(f"granted {dollars(nanodollars)} dollars to {tenant} ({key})")


def list_all(tenant: TenantOption, as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List a tenant's grants. The admin API has the remaining balance."""
    from gateway.billing.credit import CreditStore
    from gateway.billing.money import dollars

    settings = settings_from(data_dir=data_dir)
    entries = with_database(settings, lambda database: CreditStore(database).entries(tenant))
    lines = [
        EntryLine(
            entry.created_at.isoformat(timespec="seconds"),
            dollars(entry.amount_nanodollars),
            entry.reason,
            entry.idempotency_key,
        )
        for entry in entries
    ]
    print_records(lines, ("created_at", "amount", "reason", "once"), as_json=as_json)
