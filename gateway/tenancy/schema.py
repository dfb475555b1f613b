"""Bringing the database's schema up to date.

Every command that opens the store calls `upgrade`, on SQLite and on PostgreSQL alike: it costs one SELECT where
nothing is to do. Only one process at a time migrates; the others wait for it and find the work done.
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
"""PostgreSQL's lock around a migration: any constant will do, as long as nothing else takes it."""


async def current_revision(database: AsyncEngine) -> str | None:
    """The revision that the database stands at; None before the first.

    Raises:
        StoreUnavailable: it does not answer.
    """
    with answering():
        async with database.connect() as connection:
            if not await connection.run_sync(lambda sync: inspect(sync).has_table("alembic_version")):
                return None
            revision: str | None = await connection.scalar(text("SELECT version_num FROM alembic_version"))
            return revision


async def upgrade(url: str) -> bool:
    """Apply the revisions that the database lacks, all or none. False: it lacked none.

    Raises:
        StoreUnavailable: it does not answer.
        SchemaMismatch: a newer version of this program has migrated it further than this one knows.
    """
    database = open_database(url)
    try:
        revision = await current_revision(database)
    finally:
        await database.dispose()
    if revision == migrations.HEAD:
        return False

    # Loading Alembic takes as long as all the rest of a command.
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
    """Alembic's configuration, wherever the package is installed, for work on an open connection."""
    from alembic.config import Config

    # Its own default is what stdout was when alembic was imported.
    config = Config(str(files(migrations) / "alembic.ini"), stdout=sys.stdout)
    config.attributes["connection"] = connection
    return config


async def in_locked_transaction(url: str, action: Callable[[Connection], None]) -> None:
    """Run `action` in one transaction that no other migration overlaps.

    Foreign keys are off meanwhile on SQLite, where altering a table means dropping and rebuilding it.
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
