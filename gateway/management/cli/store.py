"""The stores and the operations on them, opened for one command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.config.settings import Settings
    from gateway.management.operations.local import LocalOperations
    from gateway.tenancy import TenantStore

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


def with_operations(settings: "Settings", action: Callable[["LocalOperations"], Awaitable[T]]) -> T:
    """Run `action` on the operations of management, which leave an audit entry for each change."""
    from gateway.analytics import open_analytics
    from gateway.config.pepper import load_pepper
    from gateway.management.operations.context import context_from
    from gateway.management.operations.local import LocalOperations
    from gateway.process.open_limiter import open_limiter

    pepper = load_pepper(settings)

    async def run(database: "AsyncEngine") -> T:
        analytics = open_analytics(settings.analytics_url.get_secret_value())
        limiter = open_limiter(settings, replica="")  # a command takes no holds, so it is no replica
        try:
            return await action(LocalOperations(context_from(settings, database, pepper, analytics, limiter)))
        finally:
            await limiter.aclose()
            await analytics.aclose()

    return with_database(settings, run)


def with_store(settings: "Settings", action: Callable[["TenantStore"], Awaitable[T]]) -> T:
    """Run `action` on the store of tenants and keys."""
    from gateway.config.pepper import load_pepper
    from gateway.tenancy import TenantStore

    return with_database(settings, lambda database: action(TenantStore(database, load_pepper(settings))))
