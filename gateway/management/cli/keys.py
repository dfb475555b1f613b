"""turnpike key"""

import dataclasses
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_json, print_records
from gateway.management.cli.store import with_operations, with_store

if TYPE_CHECKING:
    from gateway.management.operations.local import LocalOperations
    from gateway.tenancy import KeyRecord


def create(
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant's name.")],
    name: Annotated[str, typer.Option("--name", help="Name or purpose of the key.")] = "",
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Create an API key and print it. It is shown only once."""
    from gateway.management.operations.keys import NewKey
    from gateway.tenancy.queries import key_of

    async def create(operations: "LocalOperations") -> tuple[str, "KeyRecord"]:
        path = await operations.path_of(tenant)
        created = await operations.change("createKey", path, NewKey(name, None, None, None))
        async with operations.context.reading() as connection:
            return created["key"], await key_of(connection, created["id"])

    plaintext, record = with_operations(settings_from(data_dir=data_dir), create)
    if as_json:
        print_json({**dataclasses.asdict(record), "key": plaintext})
        return
    typer.echo(plaintext)
    if sys.stdout.isatty():
        typer.echo("Keep it now: it is not shown again.", err=True)


def list_all(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant.")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List the keys, without their secrets."""
    keys = with_store(settings_from(data_dir=data_dir), lambda store: store.list_keys(tenant))
    columns = ("public_id", "tenant_name", "name", "last_four", "created_at", "revoked_at")
    print_records(keys, columns, as_json=as_json)


def revoke(
    public_id: Annotated[str, typer.Argument(help="The 12 characters between the dashes of the key.")],
    data_dir: DataDir = None,
) -> None:
    """Revoke a key permanently. Running gateways reject it within 5 seconds."""
    from gateway.tenancy.keys import is_public_id
    from gateway.tenancy.queries import key_of

    if not is_public_id(public_id):  # perhaps a whole key: not repeated
        raise typer.BadParameter("PUBLIC_ID is the 12 characters between the dashes of a key")

    async def revoke(operations: "LocalOperations") -> "KeyRecord":
        await operations.change("revokeKey", {"key_id": public_id})
        async with operations.context.reading() as connection:
            return await key_of(connection, public_id)

    record = with_operations(settings_from(data_dir=data_dir), revoke)
    typer.echo(f"revoked key {record.public_id} of tenant {record.tenant_name}")
