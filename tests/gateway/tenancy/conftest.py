"""The store under test, on both databases."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy import TenantStore
from tests.support.tenants import PEPPER


@pytest.fixture
def store(database: AsyncEngine) -> TenantStore:
    return TenantStore(database, PEPPER)
