"""Migration of the database schema.

Every command that opens the store calls `upgrade`, on SQLite and on PostgreSQL: it costs one SELECT if the schema is
current. One process at a time migrates; the others wait for it and find the work done.
"""

import sys
from collections.abc import Callable
from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import Connection, func, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

import migrations
from gateway.tenancy.database import answering, open_database
from gateway.tenancy.errors import SchemaMismatch

if TYPE_CHECKING:
    from alembic.config import Config

ADVISORY_LOCK = 0x7475726E70696B65
"""PostgreSQL's advisory lock around a migration: an arbitrary constant that nothing else uses."""


async def current_revision(database: AsyncEngine) -> str | None:
    """The database's revision; None before the first.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    with answering():
        async with database.connect() as connection:
            if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
                return None
            revision: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
            return revision


async def upgrade(url: str) -> bool:
    """Apply the missing revisions, all or none. False: none were missing.

    Raises:
        StoreUnavailable: the database does not answer.
        SchemaMismatch: a newer version of this program has migrated it further.
    """
    database = open_database(url)
    try:
        revision = await current_revision(database)
    finally:
        await database.dispose()
    if revision == migrations.HEAD:
        return False

    # Importing Alembic takes as long as the rest of a command.
    from alembic import command
    from alembic.util import CommandError

    try:
        await in_locked_transaction(url, lambda connection: command.upgrade(alembic_config(connection), "head"))
    except CommandError:
        raise SchemaMismatch(
            f"the database is at revision {revision}, which this version does not know: it was migrated by a newer one"
        ) from None
    return True


def alembic_config(connection: Connection) -> "Config":
    """Alembic's configuration for work on an open connection, wherever the package is installed."""
    from alembic.config import Config

    # Alembic's default is the stdout at the time of its import.
    config = Config(str(files(migrations) / "alembic.ini"), stdout=sys.stdout)
    config.attributes["connection"] = connection
    return config


async def in_locked_transaction(url: str, action: Callable[[Connection], None]) -> None:
    """Run `action` in one transaction that excludes other migrations.

    On SQLite foreign keys are off during it, as altering a table means dropping and rebuilding it.
    """
    database = open_database(url)
    try:
        with answering():
            async with database.connect() as connection:
                if connection.dialect.name == "sqlite":
                    await connection.exec_driver_sql("PRAGMA foreign_keys=OFF")
                    await connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:
                    await connection.execute(select(func.pg_advisory_xact_lock(ADVISORY_LOCK)))
                await connection.run_sync(action)
                await connection.commit()
    finally:
        await database.dispose()
