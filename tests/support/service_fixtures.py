"""Fixtures: the small model's file, an environment without settings, servers and databases.

The conftest of all tests imports all of this module, where its packages are installed.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from engine.catalog.catalog import DownloadError, fetch
from gateway.config.setting_sources import ENV_PREFIX
from gateway.config.settings import Settings
from gateway.config.store_urls import normalise_database_url
from gateway.routing.score import ComplexityScore
from gateway.tenancy import open_database
from gateway.tenancy.schema import upgrade
from tests.support.clickhouse_server import ClickHouseServer, running_clickhouse
from tests.support.kafka_server import KafkaServer, running_kafka
from tests.support.servers import (
    PostgresServer,
    RedisServer,
    new_postgres_database,
    running_postgres,
    running_redis,
    settle_sqlite,
)
from tests.support.started import started

__all__ = [
    "clickhouse_server",
    "clickhouse_url",
    "database",
    "database_url",
    "empty_database_url",
    "kafka_server",
    "no_settings",
    "own_kafka",
    "postgres",
    "postgres_schema",
    "postgres_url",
    "redis_server",
    "routing_weights",
    "smollm2_file",
    "sqlite_schema",
    "sqlite_url",
]


@pytest.fixture(scope="session", autouse=True)
def routing_weights() -> Iterator[None]:
    """The routing weights of the package are parsed once a process, and not once an application: half of its time."""
    load = ComplexityScore.load
    shipped = cache(load)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ComplexityScore, "load", lambda path=None: shipped() if path is None else load(path))
        yield


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    """The real small model's file, fetched into the models folder once a machine."""
    try:
        return fetch("smollm2", Settings().models_dir)
    except DownloadError as error:
        pytest.skip(f"the real model cannot be fetched: {error}")


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which nothing is set: no variables, and an empty working directory, which is returned."""
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole run; tests take a database of their own on it."""
    yield from started(running_postgres)


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> str:
    """An empty PostgreSQL database."""
    return normalise_database_url(new_postgres_database(postgres.url))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis server for the whole run; tests take tenants of their own on it."""
    yield from started(running_redis)


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A Kafka broker for the whole run; tests take topics and groups of their own on it, and leave it running."""
    yield from started(running_kafka)


@pytest.fixture
def own_kafka() -> Iterator[KafkaServer]:
    """A Kafka broker that a test may stop."""
    yield from started(running_kafka)


@pytest.fixture(scope="session")
def clickhouse_server() -> Iterator[ClickHouseServer]:
    """ClickHouse behind HTTP for the whole run; tests take a database of their own on it, and leave it running."""
    with running_clickhouse() as server:
        yield server


@pytest.fixture
def clickhouse_url(clickhouse_server: ClickHouseServer) -> str:
    """An empty ClickHouse database."""
    return clickhouse_server.new_database()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """An SQLite database that is not there yet."""
    return normalise_database_url(f"sqlite:///{tmp_path / 'turnpike.db'}")


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest) -> str:
    """Each of the databases that the store runs on, without a schema."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


@pytest.fixture(scope="session")
def sqlite_schema(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with the schema alone, to be copied: to migrate takes many times as long."""
    path = tmp_path_factory.mktemp("schema") / "turnpike.db"
    asyncio.run(upgrade(normalise_database_url(f"sqlite:///{path}")))
    settle_sqlite(path)
    return path


@pytest.fixture(scope="session")
def postgres_schema(postgres: PostgresServer) -> str:
    """The name of a PostgreSQL database with the schema alone, to be copied."""
    url = new_postgres_database(postgres.url)
    asyncio.run(upgrade(normalise_database_url(url)))
    return url.rpartition("/")[2]


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Each of the databases that the store runs on, with the schema."""
    if request.param == "sqlite":
        path = tmp_path / "turnpike.db"
        shutil.copyfile(request.getfixturevalue("sqlite_schema"), path)
        return normalise_database_url(f"sqlite:///{path}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return normalise_database_url(new_postgres_database(server.url, request.getfixturevalue("postgres_schema")))


@pytest.fixture
async def database(database_url: str, anyio_backend: str) -> AsyncIterator[AsyncEngine]:
    engine = open_database(database_url)
    yield engine
    await engine.dispose()
