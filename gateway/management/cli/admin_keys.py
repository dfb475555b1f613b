"""turnpike admin-key"""

import dataclasses
import os
import sys
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.management.cli.managed import refuse_url
from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_json, print_list
from gateway.management.cli.store import with_database

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.config.settings import Settings
    from gateway.management.operations.admin_keys import AdminKeyRecord, AdminKeyStore


class RoleName(StrEnum):
    """The roles again, as their home in `gateway.management.operations` takes a while to import."""

    ADMIN = "admin"
    BILLING = "billing"
    VIEWER = "viewer"


def create(
    name: Annotated[str, typer.Argument(help="Name of the owner or of the purpose.")],
    role: Annotated[
        RoleName,
        typer.Option(
            "--role",
            help="admin: everything; billing: prices, invoices, credit, reads all but the audit log; viewer: reads.",
        ),
    ],
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Create a key for the admin API and print it. It is shown only once."""
    from gateway.management.operations.roles import Role

    settings = _settings(data_dir)
    created = with_database(settings, lambda database: _store(database, settings).create(name, Role(role), _actor()))
    if as_json:
        print_json({**_wire(created.record), "key": created.plaintext})
        return
    typer.echo(created.plaintext)
    if sys.stdout.isatty():
        typer.echo("Keep it now: it is not shown again.", err=True)


def list_all(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List the keys for the admin API, without their secrets."""
    from gateway.config.store_urls import require_sqlite_file

    settings = _settings(data_dir)
    require_sqlite_file(settings.database_url.get_secret_value())
    keys = with_database(settings, lambda database: _store(database, settings).list_all())
    columns = (
        ("PUBLIC ID", "public_id"),
        ("NAME", "name"),
        ("ROLE", "role"),
        ("LAST FOUR", "last_four"),
        ("CREATED AT", "created_at"),
        ("LAST USED AT", "last_used_at"),
        ("REVOKED AT", "revoked_at"),
    )
    empty = "no keys yet: turnpike admin-key create NAME --role admin"
    print_list([_wire(key) for key in keys], columns, as_json=as_json, empty=empty)


def revoke(
    public_id: Annotated[str, typer.Argument(help="The 12 characters between the dashes of the key.")],
    data_dir: DataDir = None,
) -> None:
    """Revoke a key for the admin API permanently. Running gateways reject its changes at once, and all its requests
    within 5 seconds."""
    from gateway.tenancy.keys import is_public_id

    if not is_public_id(public_id):  # perhaps a whole key: not repeated
        raise typer.BadParameter("PUBLIC_ID is the 12 characters between the dashes of a key")
    settings = _settings(data_dir)
    record = with_database(settings, lambda database: _store(database, settings).revoke(public_id, _actor()))
    typer.echo(f"revoked the {record.role} key {record.public_id} ({record.name})")


def _settings(data_dir: Path | None) -> "Settings":
    """The settings of this machine: with access to its secrets one makes keys, not with a key.

    Raises:
        OperatorError: the command is meant for a gateway elsewhere.
    """
    if data_dir is None:
        refuse_url("turnpike admin-key")
    return settings_from(data_dir=data_dir)


def _actor() -> str:
    from gateway.management.operations.local import local_administrator

    return local_administrator(os.getuid()).key_id


def _wire(record: "AdminKeyRecord") -> dict[str, Any]:
    from gateway.management.operations.timestamps import instant

    said = dataclasses.asdict(record)
    return {name: instant(value) if isinstance(value, datetime) else value for name, value in said.items()}


def _store(database: "AsyncEngine", settings: "Settings") -> "AdminKeyStore":
    from gateway.config.pepper import load_pepper
    from gateway.management.operations.admin_keys import AdminKeyStore

    return AdminKeyStore(database, load_pepper(settings))
