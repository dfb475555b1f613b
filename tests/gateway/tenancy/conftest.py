"""The store under test, on both databases; and the authenticator, on keys in memory."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.tenancy import Authenticator
from tests.gateway.tenancy.fake_source import Clock, FakeSource
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter


@pytest.fixture
def store(database: AsyncEngine) -> TenantWriter:
    return TenantWriter(database, PEPPER)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
async def authenticator(source: FakeSource, clock: Clock, anyio_backend: str) -> AsyncIterator[Authenticator]:
    authenticator = Authenticator(source, PEPPER, clock=clock)
    yield authenticator
    await authenticator.aclose()
