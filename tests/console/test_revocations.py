"""A logout, on databases that several gateways share."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.app import create_app
from gateway.management.console.login import SESSION_COOKIE
from gateway.management.console.revocations import SessionRevocations
from gateway.management.console.sessions import LIFETIME, KeyKind, Session
from gateway.management.console.tables import EndedSessionRow
from gateway.tenancy import StoreUnavailable, open_database
from gateway.tenancy.authenticator import MAX_OUTAGE_S
from tests.console.house import ORIGIN, House

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
AWAY = "postgresql+asyncpg://nobody:secret@127.0.0.1:1/none"


def session(name: str) -> Session:
    """One that was opened at noon."""
    return Session(KeyKind.ADMIN, "abcdef123456", int(NOON.timestamp()), name * 22)


@pytest.fixture
async def elsewhere(database_url: str, anyio_backend: str) -> AsyncIterator[SessionRevocations]:
    """Another gateway's, on the same database as `database`."""
    engine = open_database(database_url)
    yield SessionRevocations(engine, lambda: NOON)
    await engine.dispose()


async def test_a_revocation_reaches_every_gateway_alone(database: AsyncEngine, elsewhere: SessionRevocations) -> None:
    here = SessionRevocations(database, lambda: NOON)
    one, other = session("a"), session("b")
    assert not await elsewhere.has_ended(one)
    await here.end(one)
    for gateway in (here, elsewhere):
        assert await gateway.has_ended(one)
        assert not await gateway.has_ended(other)
    await elsewhere.end(one)
    assert await here.has_ended(one)


async def test_an_ending_is_forgotten_when_its_token_would_not_do_any_more(database: AsyncEngine) -> None:
    now = NOON
    ended = SessionRevocations(database, lambda: now)
    await ended.end(session("a"))
    now = NOON + LIFETIME - timedelta(seconds=1)
    await ended.end(session("b"))
    assert await ended.has_ended(session("a"))
    now = NOON + LIFETIME
    await ended.end(session("c"))
    async with database.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(EndedSessionRow)) == 1


async def test_without_the_database_a_session_stays_as_it_was_seen_for_as_long_as_its_key(
    database: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    ended = SessionRevocations(database, lambda: NOON, lambda: clock[0])
    await ended.end(session("e"))
    assert await ended.has_ended(session("e"))
    assert not await ended.has_ended(session("o"))
    away = open_database(AWAY)
    monkeypatch.setattr(ended, "_database", away)
    clock[0] = MAX_OUTAGE_S
    assert not await ended.has_ended(session("o"))
    for unsure in ("e", "n"):
        with pytest.raises(StoreUnavailable):
            await ended.has_ended(session(unsure))
    clock[0] = MAX_OUTAGE_S + 1
    with pytest.raises(StoreUnavailable):
        await ended.has_ended(session("o"))
    with pytest.raises(StoreUnavailable):
        await ended.end(session("o"))
    await away.dispose()


async def test_a_stolen_cookie_is_of_no_use_at_any_gateway_after_the_logout(console: House) -> None:
    second = create_app(console.settings, console.services, console.admin)
    cookie = {"cookie": f"{SESSION_COOKIE}={console.token('viewer')}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(second), base_url=ORIGIN) as http:
        assert (await http.get("/console", headers=cookie)).status_code == 200
        form = {"csrf": console.csrf("viewer")}
        assert (await console.http.post("/console/logout", data=form, headers=cookie)).status_code == 303
        for gateway in (console.http, http):
            assert (await gateway.get("/console", headers=cookie)).headers["location"] == "/console/login"
