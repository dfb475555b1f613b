"""Backups as docs/deployment.md describes them, on real servers: the restored data equals the original."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import asyncpg
import clickhouse_connect
import pytest
from sqlalchemy import make_url

from gateway.analytics import Analytics, migrate, open_analytics
from gateway.analytics.rollups import find_drift
from gateway.analytics.sums import Grain
from gateway.config.store_urls import normalise_database_url
from gateway.tenancy import open_database
from gateway.tenancy.schema import upgrade
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.servers import PostgresServer
from tests.support.tenants import PEPPER
from tests.support.usage_samples import MARCH, event, store
from tests.support.writers import TenantWriter

DEPLOYMENT = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text(encoding="utf-8")
GONE = ("DROP DATABASE IF EXISTS turnpike WITH (FORCE)", "DROP ROLE IF EXISTS turnpike")
"""Other tests have a database of that name, too."""


@pytest.mark.skipif(shutil.which("pg_dump") is None, reason="there is no pg_dump: apt-get install postgresql-client")
async def test_a_postgresql_dump_restores_into_an_empty_database(postgres: PostgresServer, tmp_path: Path) -> None:
    url = normalise_database_url(f"{postgres.url.rpartition('/')[0]}/turnpike")
    await say(postgres, *GONE, "CREATE ROLE turnpike LOGIN SUPERUSER", "CREATE DATABASE turnpike OWNER turnpike")
    try:
        await upgrade(url)
        database = open_database(url)
        await TenantWriter(database, PEPPER).create_tenant("acme", "premium")
        key = await TenantWriter(database, PEPPER).create_key("acme", "first")
        await database.dispose()

        run(postgres, "pg_dump", tmp_path)
        await say(postgres, "DROP DATABASE turnpike", "CREATE DATABASE turnpike OWNER turnpike")
        run(postgres, "pg_restore", tmp_path)

        assert not await upgrade(url)
        database = open_database(url)
        assert key.record.public_id in await TenantWriter(database, PEPPER).active_keys([key.record.public_id])
        await database.dispose()
    finally:
        await say(postgres, *GONE)


async def say(server: PostgresServer, *statements: str) -> None:
    connection = await asyncpg.connect(server.url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


def run(server: PostgresServer, program: str, folder: Path) -> None:
    """The line that has the program, in a folder, as the container would run it."""
    (line,) = re.findall(rf"^docker compose exec -T postgres ({program} .*)$", DEPLOYMENT, re.MULTILINE)
    place = {"PGHOST": "127.0.0.1", "PGPORT": str(make_url(server.url).port)}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env={**os.environ, **place}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


async def test_usage_is_restored_into_tables_that_a_start_has_made(clickhouse_server: ClickHouseServer) -> None:
    select, insert = re.findall(r'-q "(.* FORMAT Native)"', DEPLOYMENT)
    old, new = clickhouse_server.new_database(), clickhouse_server.new_database()
    stores = [open_analytics(url) for url in (old, new)]
    for each in stores:
        await migrate(each)
    await store(stores[0], [event(number) for number in range(5)])
    await store(stores[0], [event(number) for number in range(3, 8)])  # two came again
    table = insert.split()[2]
    dump = client_of(old).raw_query(select.removesuffix(" FORMAT Native"), fmt="Native")
    client_of(new).raw_insert(table, insert_block=dump, fmt="Native")

    assert await distinct(stores[0]) == await distinct(stores[1]) != []
    for grain in Grain:
        assert not await find_drift(stores[1], grain, MARCH)
    for each in stores:
        await each.aclose()


def client_of(url: str) -> clickhouse_connect.driver.Client:
    parsed = make_url(url)
    return clickhouse_connect.get_client(
        host=parsed.host,
        port=parsed.port or 0,
        username=parsed.username,
        password=str(parsed.password),
        database=parsed.database or "",
    )


async def distinct(analytics: Analytics) -> list[tuple]:
    return await analytics.query("SELECT * FROM usage_events FINAL ORDER BY event_id")
