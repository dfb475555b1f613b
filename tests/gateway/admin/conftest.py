"""The admin API over a real database, SQLite and PostgreSQL, called in-process."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.admin.admin_keys import AdminKeyStore
from gateway.admin.app import AdminApp
from gateway.admin.context import AdminContext
from gateway.admin.roles import Role
from gateway.admin.routes import PREFIX
from gateway.admission import Limiter, MemoryStore
from gateway.analytics import Analytics, AnalyticsAway
from gateway.http.errors import APIError
from gateway.http.middleware import Door, Envelope
from gateway.telemetry.outcomes import RequestOutcomes
from gateway.tenancy import Limits, TenantStore

PEPPER = b"a pepper for tests, of 32 bytes."
TIERS = {"premium": Limits(), "standard": Limits(concurrent=4)}
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Clock:
    """The time of day; each look at it is a little later."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now


@pytest.fixture(autouse=True)
def _silent_log() -> Iterator[None]:
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    yield
    structlog.reset_defaults()


@pytest.fixture
def clock() -> Clock:
    return Clock()


class AwayAnalytics:
    """A store of usage that does not answer."""

    async def command(self, sql: str, parameters: Any = None) -> None:
        raise AnalyticsAway("away")

    async def query(self, sql: str, parameters: Any = None) -> list[Any]:
        raise AnalyticsAway("away")

    async def insert(self, table: str, columns: Any, rows: Any, deduplication_token: str | None = None) -> None:
        raise AnalyticsAway("away")

    async def aclose(self) -> None: ...


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


@dataclass
class Admin:
    """The application and a client for each role. Errors must have the envelope: `refused` checks it."""

    app: AdminApp
    http: httpx.AsyncClient
    keys: dict[str, str] = field(default_factory=dict)

    async def request(
        self, method: str, path: str, role: str = "admin", *, headers: dict[str, str] | None = None, **rest: Any
    ) -> httpx.Response:
        authorised = {"authorization": f"Bearer {self.keys[role]}"} if role else {}
        return await self.http.request(method, PREFIX + path, headers=authorised | (headers or {}), **rest)

    async def get(self, path: str, role: str = "admin", **rest: Any) -> Any:
        response = await self.request("GET", path, role, **rest)
        assert response.status_code == 200, response.text
        return response.json()

    async def post(self, path: str, body: Any = None, status: int = 201, **rest: Any) -> Any:
        response = (
            await self.request("POST", path, json=body, **rest)
            if body is not None
            else await self.request("POST", path, **rest)
        )
        assert response.status_code == status, response.text
        return response.json()

    async def refused(self, status: int, method: str, path: str, role: str = "admin", **rest: Any) -> dict[str, Any]:
        response = await self.request(method, path, role, **rest)
        assert response.status_code == status, response.text
        assert response.json().keys() == {"error"}
        error: dict[str, Any] = response.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error

    async def every(self, path: str, limit: int) -> list[Any]:
        """A whole list, by pages."""
        items: list[Any] = []
        cursor = None
        while True:
            params = {"limit": limit} | ({"cursor": cursor} if cursor else {})
            page = await self.get(path, params=params)
            items += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                return items
            assert len(page["data"]) == limit


async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
    """In the place of the rest of the gateway."""
    raise APIError(404, "elsewhere", code="elsewhere")


@pytest.fixture
async def admin(context: AdminContext, clock: Clock) -> AsyncIterator[Admin]:
    app = AdminApp(context)
    store = AdminKeyStore(context.database, PEPPER, now=clock)
    transport = httpx.ASGITransport(
        Envelope(Door(elsewhere, PREFIX, app), RequestOutcomes()), raise_app_exceptions=True
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://turnpike") as http:
        admin = Admin(app, http)
        for role in Role:
            admin.keys[role] = (await store.create(f"a {role}", role)).plaintext
        yield admin
    await app.aclose()


@pytest.fixture
def store(database: AsyncEngine, clock: Clock) -> TenantStore:
    return TenantStore(database, PEPPER, now=clock)
