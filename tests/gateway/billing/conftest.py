"""The books under test, on both databases, with a tenant in them."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.support.writers import TenantWriter


@pytest.fixture
async def acme(database: AsyncEngine) -> str:
    """The id of a tenant named acme."""
    return (await TenantWriter(database, b"p" * 32).create_tenant("acme", "premium")).id
