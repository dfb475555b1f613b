import asyncio
import socket
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import gateway.doctor.database
from gateway.config.settings import load_settings
from gateway.doctor import Finding, State
from gateway.doctor.database import database
from gateway.management.operations.admin_keys import AdminKeyStore
from gateway.management.operations.change import COMMAND_LINE
from gateway.management.operations.roles import Role
from gateway.tenancy import open_database
from gateway.tenancy.schema import upgrade
from tests.support.writers import PriceWriter, TenantWriter

pytestmark = pytest.mark.usefixtures("no_settings")

PEPPER = "p" * 32


def findings(url: str, tmp_path: Path, **settings: Any) -> dict[str, Finding]:
    settings = {"data_dir": tmp_path, "database_url": url, "key_pepper": PEPPER, **settings}
    return {each.what: each for each in database(load_settings(**settings))}


async def filled(url: str, *, revision: str | None = None) -> None:
    await upgrade(url)
    engine = open_database(url)
    store = TenantWriter(engine, PEPPER.encode())
    await store.create_tenant("acme", "standard")
    await store.create_key("acme")
    if revision is not None:
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = :it"), {"it": revision})
    await engine.dispose()


async def touched(url: str) -> None:
    """Make an SQLite file exist."""
    engine = open_database(url)
    async with engine.connect():
        pass
    await engine.dispose()


def test_one_without_tables_and_one_of_another_pepper(empty_database_url: str, tmp_path: Path) -> None:
    asyncio.run(touched(empty_database_url))
    found = findings(empty_database_url, tmp_path)["database"]
    assert (found.state, "turnpike db upgrade" in found.remedy) == (State.WARNING, True)
    asyncio.run(filled(empty_database_url))
    found = findings(empty_database_url, tmp_path)["database"]
    assert found.state is State.OK
    assert ", at revision 0" in found.detail
    assert any(character.isdigit() for character in found.detail.partition(",")[0])  # the server's version
    moved = findings(empty_database_url, tmp_path, key_pepper="q" * 32)["database"]
    assert (moved.state, "1 keys were made under another pepper" in moved.detail) == (State.WARNING, True)


def test_one_of_a_newer_program(empty_database_url: str, tmp_path: Path) -> None:
    asyncio.run(filled(empty_database_url, revision="9999"))
    found = findings(empty_database_url, tmp_path)["database"]
    assert (found.state, "a newer version" in found.detail) == (State.FAILURE, True)


def test_tenants_whose_tier_is_no_class(sqlite_url: str, tmp_path: Path) -> None:
    asyncio.run(filled(sqlite_url))
    found = findings(sqlite_url, tmp_path, service_classes={"gold": {"priority": 1}})["database"]
    assert (found.state, "standard (1)" in found.detail) == (State.WARNING, True)


def test_prices_of_what_is_served(sqlite_url: str, tmp_path: Path) -> None:
    async def price(model: str) -> None:
        engine = open_database(sqlite_url)
        await PriceWriter(engine).declare({model: (Decimal(1), Decimal(2))})
        await engine.dispose()

    models = {"models": {"a": tmp_path / "a", "b": tmp_path / "b"}}
    assert findings(sqlite_url, tmp_path)["prices"].state is State.OK  # the default models have theirs
    found = findings(sqlite_url, tmp_path, **models)["prices"]
    assert (found.state, "a, b" in found.detail) == (State.FAILURE, True)
    asyncio.run(filled(sqlite_url))
    asyncio.run(price("a"))
    found = findings(sqlite_url, tmp_path, **models)["prices"]
    assert (found.state, found.remedy.startswith("turnpike price set b ")) == (State.FAILURE, True)
    assert findings(sqlite_url, tmp_path, **models, prices={"b": ["1", "2"]})["prices"].state is State.OK


def test_administrators(sqlite_url: str, tmp_path: Path) -> None:
    async def with_key(*, revoked: bool) -> None:
        engine = open_database(sqlite_url)
        store = AdminKeyStore(engine, PEPPER.encode())
        key = await store.create("me", Role.ADMIN, COMMAND_LINE)
        if revoked:
            await store.revoke(key.record.public_id, COMMAND_LINE)
        await engine.dispose()

    assert findings(sqlite_url, tmp_path)["administrators"].state is State.WARNING
    asyncio.run(filled(sqlite_url))
    asyncio.run(with_key(revoked=True))
    assert findings(sqlite_url, tmp_path)["administrators"].state is State.WARNING
    asyncio.run(with_key(revoked=False))
    assert findings(sqlite_url, tmp_path)["administrators"].detail == "1 key"


def test_one_that_is_away(tmp_path: Path) -> None:
    (found,) = findings("postgresql://u:s3cret@127.0.0.1:1/d", tmp_path).values()
    assert found.state is State.FAILURE
    assert "s3cret" not in repr(found)


def test_one_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.doctor.database, "DEADLINE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        (found,) = findings(f"postgresql://u@127.0.0.1:{silent.getsockname()[1]}/d", tmp_path).values()
    assert (found.state, "does not answer within" in found.detail) == (State.FAILURE, True)
