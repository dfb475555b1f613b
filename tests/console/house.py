"""The whole gateway with a fake engine, as the console's tests need it: real database, journal, store of usage and
admin API, and a key of each kind."""

import shutil
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from starlette.applications import Starlette

from engine.scheduling.stats import SchedulerStats
from gateway.adapters.hosting import AdapterHosting
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.generation.services import Services
from gateway.management.console.login import SESSION_COOKIE
from gateway.management.console.sessions import ConsoleSessions, KeyKind
from gateway.management.http.app import AdminApp
from gateway.management.operations.admin_keys import AdminKeyStore
from gateway.management.operations.roles import Role
from gateway.process.opening import open_services
from gateway.tenancy import Tenant, open_database
from tests.support.fake_engine import FakeEngine
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter

ORIGIN = "http://localhost"
ACME = "acme"
GLOBEX = "globex"
TENANTS = (ACME, GLOBEX)
PRICES = {"tiny": ("0.1", "0.05", "0.4"), "org/tiny-2": ("0.1", "0.05", "0.4")}


class WatchedEngine(FakeEngine):
    """Says of its schedulers what a test wants to see."""

    def __init__(self) -> None:
        super().__init__()
        self.said: Mapping[str, SchedulerStats] = {}

    def stats(self) -> Mapping[str, SchedulerStats]:
        return self.said


@dataclass
class House:
    """`keys`: plaintexts of administrators by role and of tenants by name. A request is made as one of them, or as
    logged out (""); its session is made without the login form."""

    app: Starlette
    settings: Settings
    services: Services
    admin: AdminApp
    engine: WatchedEngine
    tenants: TenantWriter
    keys: Mapping[str, str]
    tenant: Mapping[str, Tenant]
    http: httpx.AsyncClient
    _sessions: ConsoleSessions = field(default_factory=lambda: ConsoleSessions(PEPPER))
    _tokens: dict[str, str] = field(default_factory=dict)

    def token(self, who: str) -> str:
        """The session's cookie of who has that key."""
        if who not in self._tokens:
            kind = KeyKind.ADMIN if self.keys[who].startswith("tpa-") else KeyKind.TENANT
            self._tokens[who] = self._sessions.open(kind, self.keys[who].split("-")[1])
        return self._tokens[who]

    def csrf(self, who: str) -> str:
        session = self._sessions.read(self.token(who))
        assert session is not None
        return self._sessions.csrf_token(session)

    async def get(self, path: str, who: str = "admin", **rest: Any) -> httpx.Response:
        """`path` is below /console."""
        return await self.http.get(f"/console{path}", headers=self._cookie(who), **rest)

    async def page(self, path: str, who: str = "admin", status: int = 200, **rest: Any) -> str:
        response = await self.get(path, who, **rest)
        assert response.status_code == status, response.text
        return response.text

    async def post(self, path: str, act: str, who: str = "admin", **fields: Any) -> httpx.Response:
        """Send a form as a page would: with its token."""
        data = {"csrf": self.csrf(who), "act": act, **fields}
        return await self.http.post(f"/console{path}", data=data, headers=self._cookie(who))

    def _cookie(self, who: str) -> dict[str, str]:
        return {"cookie": f"{SESSION_COOKIE}={self.token(who)}"} if who else {}


@asynccontextmanager
async def open_house(
    folder: Path,
    sqlite_schema: Path,
    *,
    now: Callable[[], datetime] | None = None,
    adapters: AdapterHosting | None = None,
    more_prices: Mapping[str, tuple[str, str, str]] = MappingProxyType({}),
    **stated: Any,
) -> AsyncIterator[House]:
    """On the event loop that it is used on. `sqlite_schema` is an SQLite file with the schema alone. `now`: the clock
    of the admin API and the console, in place of the wall's. `adapters`: where uploads go. `more_prices`: in addition
    to `PRICES`. `stated`: settings in addition."""
    shutil.copyfile(sqlite_schema, folder / "turnpike.db")
    settings = Settings(
        data_dir=folder,
        database_url=f"sqlite:///{folder / 'turnpike.db'}",
        prices={**PRICES, **more_prices},
        journal_interval_ms=5,
        journal_min_free=0,
        **stated,
    )
    engine = WatchedEngine()
    database = open_database(settings.database_url.get_secret_value())
    try:
        tenants = TenantWriter(database, PEPPER)
        administrators = AdminKeyStore(database, PEPPER)
        keys = {
            role.value: (await administrators.create(f"the {role}", role, "command-line")).plaintext for role in Role
        }
        tenant = {name: await tenants.create_tenant(name, "standard") for name in TENANTS}
        for name in TENANTS:
            keys[name] = (await tenants.create_key(name, "first")).plaintext
        services, admin = await open_services(settings, engine, database, PEPPER)
        if now is not None:
            admin = AdminApp(replace(admin.context, now=now))
        if adapters is not None:
            admin = AdminApp(replace(admin.context, adapters=adapters))
        app = create_app(settings, services, admin)
        transport = httpx.ASGITransport(app)
        async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=ORIGIN) as http:
            yield House(app, settings, services, admin, engine, tenants, keys, tenant, http)
    finally:
        await database.dispose()
