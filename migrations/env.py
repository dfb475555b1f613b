"""Alembic's entry: run the revisions on the connection that `gateway.tenancy.schema` hands over, or, under the
`alembic` command, on the database of the settings."""

import asyncio

from alembic import context
from sqlalchemy import Connection

import gateway.adapters.tables
import gateway.batches.tables
import gateway.billing.tables
import gateway.files.tables
import gateway.management.console.tables
import gateway.management.operations.tables
import gateway.tenancy.policies  # noqa: F401
from gateway.config.settings import load_settings
from gateway.tenancy.schema import in_locked_transaction
from gateway.tenancy.tables import Base


def run_revisions(connection: Connection) -> None:
    # SQLite alters a table by rebuilding it: render_as_batch writes such revisions for both databases.
    context.configure(connection=connection, target_metadata=Base.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run_revisions(given)
else:
    asyncio.run(in_locked_transaction(load_settings().database_url.get_secret_value(), run_revisions))
