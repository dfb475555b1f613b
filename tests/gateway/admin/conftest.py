"""The admin API over a real database, SQLite and PostgreSQL, called in-process."""

from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path

import httpx
import pytest
import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.admission import Limiter, MemoryStore
from gateway.analytics import Analytics
from gateway.http.access import AccessPolicy
from gateway.http.middleware import ErrorMiddleware, MountByPrefix
from gateway.management.http.app import AdminApp
from gateway.management.operations.admin_keys import AdminKeyStore
from gateway.management.operations.change import COMMAND_LINE
from gateway.management.operations.context import AdminContext
from gateway.management.operations.roles import Role
from gateway.management.operations.routes import PREFIX
from gateway.telemetry.outcomes import RequestOutcomes
from tests.gateway.admin.harness import TIERS, Admin, AwayAnalytics, Clock, elsewhere, unrecorded
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter


@pytest.fixture(autouse=True)
def _silent_log() -> Iterator[None]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def analytics() -> Analytics:
    """Modules that need usage have a real one instead."""
    return AwayAnalytics()


@pytest.fixture
def limiter() -> Limiter:
    return Limiter(MemoryStore())


@pytest.fixture
def context(
    database: AsyncEngine, clock: Clock, analytics: Analytics, limiter: Limiter, tmp_path: Path
) -> AdminContext:
    return AdminContext(
        database,
        PEPPER,
        TIERS,
        analytics,
        journal_path=tmp_path / "journal.db",
        limiter=limiter,
        invoice_grace_s=3600,
        gpu_hour_dollars=Decimal(2),
        declared_prices=frozenset({"declared"}),
        now=clock,
    )


@pytest.fixture
async def admin(context: AdminContext, clock: Clock) -> AsyncIterator[Admin]:
    app = AdminApp(context)
    store = AdminKeyStore(context.database, PEPPER, now=clock)
    transport = httpx.ASGITransport(
        ErrorMiddleware(MountByPrefix(elsewhere, PREFIX, app), RequestOutcomes(), unrecorded, AccessPolicy()),
        raise_app_exceptions=True,
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://turnpike") as http:
        admin = Admin(app, http)
        for role in Role:
            admin.keys[role] = (await store.create(f"a {role}", role, COMMAND_LINE)).plaintext
        yield admin
    await app.aclose()


@pytest.fixture
def store(database: AsyncEngine, clock: Clock) -> TenantWriter:
    return TenantWriter(database, PEPPER, now=clock)
