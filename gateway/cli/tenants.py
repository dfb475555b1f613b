"""turnpike tenant"""

from enum import StrEnum
from typing import Annotated

import typer

from gateway.cli.options import AsJson, DataDir, settings_from
from gateway.cli.output import print_records
from gateway.cli.store import with_store


class TierName(StrEnum):
    """The tiers again, as their home in `gateway.tenancy` takes a while to import; `Tier(...)` checks them."""

    PREMIUM = "premium"
    STANDARD = "standard"


def create(
    name: Annotated[str, typer.Argument(help="Letters, digits and . _ -")],
    tier: Annotated[TierName, typer.Option("--tier", help="How the tenant is served when all want at once.")],
    data_dir: DataDir = None,
) -> None:
    """Create a tenant."""
    from gateway.tenancy import Tier

    tenant = with_store(settings_from(data_dir=data_dir), lambda store: store.create_tenant(name, Tier(tier)))
    typer.echo(f"created tenant {tenant.name} ({tenant.tier})")


def list_all(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List the tenants."""
    tenants = with_store(settings_from(data_dir=data_dir), lambda store: store.list_tenants())
    print_records(tenants, ("name", "tier", "created_at", "disabled_at"), as_json=as_json)
