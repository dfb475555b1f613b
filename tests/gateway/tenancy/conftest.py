"""The store under test, on both databases."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy import TenantStore

PEPPER = b"a pepper for tests, of 32 bytes."


@pytest.fixture
def store(database: AsyncEngine) -> TenantStore:
    return TenantStore(database, PEPPER)
