"""The migrations, on both databases."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import IntegrityError

import migrations
from gateway.tenancy import SchemaMismatch, StoreUnavailable, open_database
from gateway.tenancy.schema import alembic_config, current_revision, in_locked_transaction, upgrade
from gateway.tenancy.tables import Base
from tests.support.writers import TenantWriter


async def revision_of(url: str) -> str | None:
    database = open_database(url)
    revision = await current_revision(database)
    await database.dispose()
    return revision


async def tables_of(url: str) -> set[str]:
    database = open_database(url)
    async with database.connect() as connection:
        tables = await connection.run_sync(lambda sync: inspect(sync).get_table_names())
    await database.dispose()
    return set(tables)


async def test_an_empty_database_goes_up_and_back_down(empty_database_url: str) -> None:
    assert await revision_of(empty_database_url) is None
    assert await upgrade(empty_database_url)
    assert await revision_of(empty_database_url) == migrations.HEAD
    assert await tables_of(empty_database_url) == {"alembic_version", *Base.metadata.tables}
    assert {"tenants", "api_keys", "limits"} <= set(Base.metadata.tables)
    assert not await upgrade(empty_database_url)

    await in_locked_transaction(empty_database_url, lambda c: command.downgrade(alembic_config(c), "base"))
    assert await tables_of(empty_database_url) == {"alembic_version"}
    assert await upgrade(empty_database_url)


async def test_the_tables_have_not_drifted_from_the_migrations(empty_database_url: str) -> None:
    await upgrade(empty_database_url)
    # `check` raises when autogenerate would write a revision.
    await in_locked_transaction(empty_database_url, lambda c: command.check(alembic_config(c)))


async def test_many_that_start_together_migrate_once(empty_database_url: str) -> None:
    results = await asyncio.gather(*(upgrade(empty_database_url) for _ in range(4)))
    assert any(results)
    assert await revision_of(empty_database_url) == migrations.HEAD


async def test_a_migration_that_fails_leaves_nothing_behind(empty_database_url: str) -> None:
    def half_done(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE half (id INTEGER)"))
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        await in_locked_transaction(empty_database_url, half_done)
    assert await tables_of(empty_database_url) == set()


async def test_a_database_from_the_future_is_refused(empty_database_url: str) -> None:
    await upgrade(empty_database_url)
    await in_locked_transaction(
        empty_database_url, lambda c: c.execute(text("UPDATE alembic_version SET version_num = '9999'")) and None
    )
    with pytest.raises(SchemaMismatch, match="9999"):
        await upgrade(empty_database_url)


async def test_tenants_of_any_tier_outlive_the_check_on_it(empty_database_url: str) -> None:
    """And what refers to them, where SQLite rebuilds the table."""

    async def run(statement: str) -> None:
        await in_locked_transaction(empty_database_url, lambda c: c.execute(text(statement)) and None)

    async def to(revision: str) -> None:
        await in_locked_transaction(empty_database_url, lambda c: command.upgrade(alembic_config(c), revision))

    tenant = "INSERT INTO tenants (id, name, tier, created_at) VALUES ('{0}', '{0}', '{1}', '2026-01-01 00:00:00')"
    await to("0002")
    await run(tenant.format("old", "premium"))
    await run("INSERT INTO limits (tenant_id, kind, scope_id, concurrent) VALUES ('old', 'tenant', '', 3)")
    with pytest.raises(IntegrityError):
        await run(tenant.format("new", "gold"))
    await to("0003")
    await run(tenant.format("new", "gold"))
    with pytest.raises(IntegrityError):
        await run(tenant.format("new", "gold"))
    with pytest.raises(IntegrityError):
        await in_locked_transaction(empty_database_url, lambda c: command.downgrade(alembic_config(c), "0002"))
    assert await revision_of(empty_database_url) == "0003"
    await run("DELETE FROM tenants WHERE id = 'new'")
    await in_locked_transaction(empty_database_url, lambda c: command.downgrade(alembic_config(c), "0002"))
    with pytest.raises(IntegrityError):
        await run(tenant.format("new", "gold"))
    database = open_database(empty_database_url)
    async with database.connect() as connection:
        rows = await connection.execute(
            text("SELECT name, tier, concurrent FROM tenants JOIN limits ON id = tenant_id")
        )
        assert rows.all() == [("old", "premium", 3)]
    await database.dispose()


async def test_sqlite_waits_keeps_and_checks(sqlite_url: str) -> None:
    await upgrade(sqlite_url)
    database = open_database(sqlite_url)
    async with database.connect() as connection:
        for pragma, value in (("foreign_keys", 1), ("journal_mode", "wal"), ("synchronous", 2), ("busy_timeout", 5000)):
            assert await connection.scalar(text(f"PRAGMA {pragma}")) == value
    await database.dispose()


async def test_a_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(StoreUnavailable):
        await upgrade("postgresql+asyncpg://nobody:secret@127.0.0.1:1/none")


async def test_data_survives_an_upgrade_that_has_nothing_to_do(empty_database_url: str) -> None:
    await upgrade(empty_database_url)
    database = open_database(empty_database_url)
    await TenantWriter(database, b"p" * 32).create_tenant("acme", "premium")
    await upgrade(empty_database_url)
    assert [tenant.name for tenant in await TenantWriter(database, b"p" * 32).list_tenants()] == ["acme"]
    await database.dispose()


def test_head_is_the_newest_revision() -> None:
    script = ScriptDirectory(str(Path(migrations.__file__).parent))
    assert script.get_current_head() == migrations.HEAD


def test_the_alembic_command_takes_its_url_from_the_settings(sqlite_url: str, tmp_path: Path) -> None:
    """And works from any folder."""
    ini = Path(migrations.__file__).parent / "alembic.ini"
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "-c", str(ini), "upgrade", "head"],
        env={"TURNPIKE_DATABASE_URL": sqlite_url, "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert asyncio.run(revision_of(sqlite_url)) == migrations.HEAD
