"""The SQL database, opened for one command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.config.settings import Settings

T = TypeVar("T")


def with_database(settings: "Settings", action: Callable[["AsyncEngine"], Awaitable[T]]) -> T:
    """Run `action` on the database, its schema brought up to date first."""
    from gateway.tenancy import open_database
    from gateway.tenancy.schema import upgrade

    async def run() -> T:
        url = settings.database_url.get_secret_value()
        await upgrade(url)
        database = open_database(url)
        try:
            return await action(database)
        finally:
            await database.dispose()

    return asyncio.run(run())
