"""The books: one writer at a time, so numbers have no gaps, and a check still holds when its result is written."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.billing.errors import InvalidReason
from gateway.tenancy.database import answering
from gateway.tenancy.errors import UnknownTenant
from gateway.tenancy.tables import TenantRow

ADVISORY_LOCK = 0x7475726E62696C6C
"""PostgreSQL's advisory lock around a change of the books: a constant that nothing else uses."""
MAX_TEXT_CHARS = 500


@dataclass(frozen=True, slots=True)
class TenantName:
    """Id and name of the tenant whose books are read."""

    id: str
    name: str


async def lock_books(connection: AsyncConnection) -> None:
    """Exclude other writers of the books until the caller's transaction ends. On SQLite that transaction has the write
    lock already."""
    if connection.dialect.name != "sqlite":
        await connection.execute(select(func.pg_advisory_xact_lock(ADVISORY_LOCK)))


@asynccontextmanager
async def reading(database: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A snapshot: all reads within the block see one moment.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    with answering():
        async with database.connect() as connection:
            if connection.dialect.name == "sqlite":
                await connection.exec_driver_sql("BEGIN")
            else:
                await connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection


async def find_tenant(connection: AsyncConnection, name: str) -> TenantName:
    """The tenant with this name.

    Raises:
        UnknownTenant: no tenant has that name.
    """
    tenant_id = await connection.scalar(select(TenantRow.id).where(TenantRow.name == name))
    if tenant_id is None:
        raise UnknownTenant(f"there is no tenant named {name}")
    return TenantName(tenant_id, name)


def check_text(what: str, text: str, most: int = MAX_TEXT_CHARS) -> None:
    """Check a text for the books. `what`: its name in the message. `most`: largest number of characters.

    Raises:
        InvalidReason: not 1 to `most` printable characters.
    """
    if not (0 < len(text) <= most and text.isprintable()):
        raise InvalidReason(f"{what} is 1 to {most} printable characters")
