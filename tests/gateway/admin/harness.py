"""Shared by the tests of the admin API: a client for each role, a clock, a store of usage that is away."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from gateway.analytics import AnalyticsAway
from gateway.http.errors import APIError
from gateway.management.http.app import AdminApp
from gateway.management.operations.routes import PREFIX
from gateway.refusals.refusal import Refusal
from gateway.tenancy import Limits

TIERS = {"premium": Limits(), "standard": Limits(concurrent=4)}

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Clock:
    """The time of day; each look at it is a little later."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now


class AwayAnalytics:
    """A store of usage that does not answer."""

    async def command(self, sql: str, parameters: Any = None) -> None:
        raise AnalyticsAway("away")

    async def query(self, sql: str, parameters: Any = None) -> list[Any]:
        raise AnalyticsAway("away")

    async def insert(self, table: str, columns: Any, rows: Any, deduplication_token: str | None = None) -> None:
        raise AnalyticsAway("away")

    async def aclose(self) -> None: ...


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


def unrecorded(refusal: Refusal) -> None:
    """In the place of the log of refusals."""


UNKNOWN_TENANT = "00000000-0000-0000-0000-000000000000"


async def new_tenant(admin: Admin, name: str = "acme", tier: str = "premium") -> dict:
    return await admin.post("/tenants", {"name": name, "tier": tier})
