"""turnpike tenant"""

from typing import Annotated

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_records
from gateway.management.cli.store import with_operations, with_store


def create(
    name: Annotated[str, typer.Argument(help="Letters, digits and . _ -")],
    tier: Annotated[
        str,
        typer.Option(
            "--tier",
            metavar="CLASS",
            help="Service class of the tenant: premium, standard, or one of the setting service_classes.",
        ),
    ],
    data_dir: DataDir = None,
) -> None:
    """Create a tenant."""
    from gateway.config.service_classes import require_class
    from gateway.management.operations.tenants import NewTenant

    settings = settings_from(data_dir=data_dir)
    require_class(settings.service_classes, tier)
    with_operations(settings, lambda operations: operations.change("createTenant", body=NewTenant(name, tier)))
    typer.echo(f"created tenant {name} ({tier})")


def list_all(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List the tenants."""
    tenants = with_store(settings_from(data_dir=data_dir), lambda store: store.list_tenants())
    print_records(tenants, ("name", "tier", "created_at", "disabled_at"), as_json=as_json)
