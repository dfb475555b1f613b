"""turnpike tenant"""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsJson
from gateway.management.cli.output import print_list, print_record

if TYPE_CHECKING:
    from gateway.management.client import AdminClient

Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]
Tier = Annotated[
    str,
    typer.Option(
        "--tier",
        metavar="CLASS",
        help="Service class of the tenant: premium, standard, or one of the setting service_classes.",
    ),
]


@managed
def create(
    client: "AdminClient",
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits and . _ -")],
    tier: Tier,
) -> None:
    """Create a tenant."""
    client.change("createTenant", body={"name": name, "tier": tier})
    typer.echo(f"created tenant {name} ({tier})")


@managed
def list_all(client: "AdminClient", as_json: AsJson = False) -> None:
    """List the tenants."""
    columns = (("NAME", "name"), ("TIER", "tier"), ("CREATED AT", "created_at"), ("SUSPENDED AT", "suspended_at"))
    empty = "no tenants yet: turnpike tenant create NAME --tier standard"
    print_list(client.items("listTenants"), columns, as_json=as_json, empty=empty)


@managed
def show(client: "AdminClient", name: Name, as_json: AsJson = False) -> None:
    """Show a tenant."""
    print_record(client.read("readTenant", client.tenant_path(name)), as_json=as_json)


@managed
def set_tier(client: "AdminClient", name: Name, tier: Tier) -> None:
    """Change the service class of a tenant. Running gateways apply it within 5 seconds."""
    client.change("updateTenant", client.tenant_path(name), {"tier": tier})
    typer.echo(f"tenant {name} is {tier} now")


@managed
def suspend(client: "AdminClient", name: Name) -> None:
    """Suspend a tenant. Running gateways reject its keys within 5 seconds, until it is resumed."""
    client.change("suspendTenant", client.tenant_path(name))
    typer.echo(f"suspended tenant {name}")


@managed
def resume(client: "AdminClient", name: Name) -> None:
    """Resume a suspended tenant."""
    client.change("resumeTenant", client.tenant_path(name))
    typer.echo(f"resumed tenant {name}")
