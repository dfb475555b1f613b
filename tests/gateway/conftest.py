"""The SQL database of a test, on SQLite and on PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy import open_database
from gateway.tenancy.schema import upgrade


@pytest.fixture
def database_url(empty_database_url: str) -> str:
    asyncio.run(upgrade(empty_database_url))
    return empty_database_url


@pytest.fixture
async def database(database_url: str, anyio_backend: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(database_url)
    yield engine
    await engine.dispose()
