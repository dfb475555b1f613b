"""The store under test, on both databases."""

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter


@pytest.fixture
def store(database: AsyncEngine) -> TenantWriter:
    return TenantWriter(database, PEPPER)
