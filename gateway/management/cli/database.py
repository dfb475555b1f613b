"""turnpike db"""

import asyncio

import typer

from gateway.management.cli.options import DataDir, settings_from


def upgrade(data_dir: DataDir = None) -> None:
    """Migrate the database to the current schema. Commands that use it do so themselves, under a lock."""
    from gateway.tenancy import schema

    settings = settings_from(data_dir=data_dir)
    changed = asyncio.run(schema.upgrade(settings.database_url.get_secret_value()))
    typer.echo("the database is up to date now" if changed else "the database was up to date")
