"""Opens the SQL database: SQLite for one gateway, PostgreSQL in production, chosen by URL."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import ConnectionPoolEntry

from gateway.extras import require
from gateway.tenancy.errors import StoreUnavailable

ANSWER_TIMEOUT_S = 5
"""Timeout in seconds of a connection, a statement and SQLite's write lock."""


def open_database(url: str) -> AsyncEngine:
    """An engine for `url` (as `Settings` normalises it). Connects on first use; the caller disposes of it.

    SQLite runs in WAL mode, so readers never wait for the writer, with synchronous=FULL: writes are rare, and none may
    be lost in a power failure.

    Raises:
        StoreUnavailable: the folder of an SQLite database cannot be created.
        MissingExtra: the driver of PostgreSQL is not installed.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        if parsed.database is not None:
            _make_folder(Path(parsed.database).parent)
        engine = create_async_engine(parsed, hide_parameters=True)
        event.listen(engine.sync_engine, "connect", _set_pragmas)
        return engine
    require("postgres", "PostgreSQL")
    return create_async_engine(
        parsed,
        hide_parameters=True,
        pool_pre_ping=True,
        pool_timeout=ANSWER_TIMEOUT_S,
        connect_args={"timeout": ANSWER_TIMEOUT_S, "command_timeout": ANSWER_TIMEOUT_S},
    )


@contextmanager
def answering() -> Iterator[None]:
    """Turn every failure of a database to answer into `StoreUnavailable`.

    A violated constraint is an answer, and passes through. The driver's own message is dropped, as it may name hosts
    and users.
    """
    try:
        yield
    except IntegrityError:
        raise
    except (DBAPIError, PoolTimeout, OSError) as error:
        cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        raise StoreUnavailable(f"the database does not answer ({type(cause).__name__})") from error


@asynccontextmanager
async def writing(database: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A transaction that reads and then writes: committed at the end of the block, rolled back by an error.

    SQLite's write lock is taken at the start, so what was read stays true and a second writer waits instead of failing
    in the middle. On PostgreSQL the block locks the rows that it reads.
    """
    with answering():
        async with database.connect() as connection:
            if connection.dialect.name == "sqlite":
                await connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            await connection.commit()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"cannot make the folder {folder} ({type(error).__name__})") from error


def _set_pragmas(connection: Any, _: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout={ANSWER_TIMEOUT_S * 1000}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
