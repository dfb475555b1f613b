"""turnpike key"""

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsJson, TenantFilter, TenantOption
from gateway.management.cli.output import print_json, print_list, print_record
from gateway.management.cli.parsing import parse_time

if TYPE_CHECKING:
    from gateway.management.client import AdminClient

PublicId = Annotated[str, typer.Argument(metavar="PUBLIC_ID", help="The 12 characters between the dashes of the key.")]
Scopes = Annotated[
    list[str] | None,
    typer.Option("--scope", metavar="SCOPE", help="Allowed scope, such as chat. Repeatable. [default: all]"),
]
Models = Annotated[
    list[str] | None, typer.Option("--model", metavar="MODEL", help="Allowed model. Repeatable. [default: all]")
]


@managed
def create(
    client: "AdminClient",
    tenant: TenantOption,
    name: Annotated[str, typer.Option("--name", help="Name or purpose of the key.")] = "",
    scopes: Scopes = None,
    models: Models = None,
    expires_at: Annotated[
        str | None, typer.Option("--expires-at", metavar="TIME", help="ISO 8601. [default: never]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create an API key and print it. It is shown only once."""
    body = {
        "name": name or None,
        "scopes": scopes or None,
        "models": models or None,
        "expires_at": None if expires_at is None else parse_time("--expires-at", expires_at),
    }
    created = client.change("createKey", client.tenant_path(tenant), body)
    if as_json:
        print_json(created)
        return
    _print_key(created["key"])


@managed
def list_all(client: "AdminClient", tenant: TenantFilter = None, as_json: AsJson = False) -> None:
    """List the keys, without their secrets."""
    columns = (
        ("PUBLIC ID", "id"),
        ("TENANT", "tenant"),
        ("NAME", "name"),
        ("LAST FOUR", "last_four"),
        ("CREATED AT", "created_at"),
        ("EXPIRES AT", "expires_at"),
        ("REVOKED AT", "revoked_at"),
    )
    keys = client.items("listKeys", query=client.tenant_query(tenant))
    print_list(keys, columns, as_json=as_json, empty="no keys yet: turnpike key create --tenant NAME")


@managed
def show(client: "AdminClient", public_id: PublicId, as_json: AsJson = False) -> None:
    """Show a key, without its secret."""
    print_record(client.read("readKey", _path(public_id)), as_json=as_json)


@managed
def use(
    client: "AdminClient",
    public_ids: Annotated[list[str], typer.Argument(metavar="PUBLIC_ID...", help="The keys, by their public ids.")],
    as_json: AsJson = False,
) -> None:
    """Show when keys were last used, what they spent this month, and who created them."""
    columns = (
        ("PUBLIC ID", "id"),
        ("TENANT", "tenant"),
        ("LAST USED AT", "last_used_at"),
        ("SPENT THIS MONTH", "month_spent_dollars"),
        ("CREATED BY", "created_by"),
    )
    found = client.read("readKeyUse", query={"ids": ",".join(public_ids)})
    print_list(found["data"], columns, as_json=as_json, empty="no key has one of these ids: turnpike key list")


@managed
def rotate(
    client: "AdminClient",
    public_id: PublicId,
    overlap_hours: Annotated[
        float | None,
        typer.Option("--overlap-hours", min=0.0, help="Time for which the old key stays valid, too. [default: 24]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a successor with the same name, permissions and limits, and print it. It is shown only once."""
    until = None
    if overlap_hours is not None:
        until = (datetime.now(UTC) + timedelta(hours=overlap_hours)).isoformat().replace("+00:00", "Z")
    rotated = client.change("rotateKey", _path(public_id), {"old_valid_until": until})
    if as_json:
        print_json(rotated)
        return
    _print_key(rotated["successor"]["key"])


@managed
def set_grants(client: "AdminClient", public_id: PublicId, scopes: Scopes = None, models: Models = None) -> None:
    """Replace the permissions of a key. Running gateways apply them within 5 seconds."""
    key = client.change("setKeyGrants", _path(public_id), {"scopes": scopes or None, "models": models or None})
    allowed = [", ".join(key[name]) if key[name] else f"all {name}" for name in ("scopes", "models")]
    typer.echo(f"key {key['id']} of tenant {key['tenant']} allows {allowed[0]} with {allowed[1]}")


@managed
def revoke(client: "AdminClient", public_id: PublicId) -> None:
    """Revoke a key permanently. Running gateways reject it within 5 seconds."""
    key = client.change("revokeKey", _path(public_id))
    typer.echo(f"revoked key {key['id']} of tenant {key['tenant']}")


def require_public_id(text: str, what: str = "PUBLIC_ID is") -> str:
    """
    Raises:
        typer.BadParameter: it is none. It may be a whole key, so the message does not repeat it.
    """
    from gateway.tenancy.keys import is_public_id

    if not is_public_id(text):
        raise typer.BadParameter(f"{what} the 12 characters between the dashes of a key")
    return text


def _path(public_id: str) -> dict[str, str]:
    return {"key_id": require_public_id(public_id)}


def _print_key(key: str) -> None:
    typer.echo(key)
    if sys.stdout.isatty():
        typer.echo("Keep it now: it is not shown again.", err=True)
