"""The exporters of the compose file log in to real stores as the compose file says, and tell when a store is away."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import yaml

from tests.deploy.compose import ROOT, load_compose, required_variables
from tests.deploy.composed import composed_redis
from tests.deploy.exporters import metrics_of, running_exporter, value_of
from tests.support.servers import START_DEADLINE_S, PostgresServer, ServerMissing, free_port, new_postgres_database

SECRETS = {name: f"{index:064x}" for index, name in enumerate(sorted(required_variables()))}
SERVICES: dict[str, dict[str, Any]] = load_compose(SECRETS)["services"]
MONITOR = ROOT / "deploy" / "compose" / "postgres-monitor.sh"


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return new_postgres_database(postgres.url)


def make_monitor(database: str) -> None:
    """Run the script of the compose file as the image does, twice: it says that it can be repeated."""
    server, _, name = database.rpartition("/")
    environment = {
        "PATH": os.environ["PATH"],
        "PGHOST": "127.0.0.1",
        "PGPORT": server.rpartition(":")[2],
        "POSTGRES_USER": "postgres",
        "POSTGRES_DB": name,
        "POSTGRES_MONITOR_PASSWORD": SERVICES["postgres"]["environment"]["POSTGRES_MONITOR_PASSWORD"],
    }
    for _ in range(2):
        done = subprocess.run([MONITOR], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert SECRETS["POSTGRES_MONITOR_PASSWORD"] not in done.stdout + done.stderr


def postgres_scrape(database: str, log: Path) -> str:
    stated = SERVICES["postgres-exporter"]["environment"]
    place = database.rpartition("@")[2].partition("/")[0]
    uri = stated["DATA_SOURCE_URI"].replace("postgres:5432/turnpike", f"{place}/{database.rpartition('/')[2]}")
    with running_exporter("prometheus-postgres-exporter", {**stated, "DATA_SOURCE_URI": uri}, log) as url:
        return httpx.get(f"{url}/metrics", timeout=30).text


async def test_the_exporter_of_postgresql_reads_statistics_and_no_table(database: str, tmp_path: Path) -> None:
    make_monitor(database)
    owner = await asyncpg.connect(database)
    await owner.execute("CREATE TABLE keys (secret text)")
    await owner.close()
    monitor = await asyncpg.connect(database.replace("postgres@", "monitor@"))
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await monitor.fetch("SELECT * FROM keys")
    await monitor.close()
    try:
        text = postgres_scrape(database, tmp_path / "log")
    except ServerMissing as error:
        pytest.skip(str(error))
    assert value_of(text, "pg_up") == 1
    assert f'datname="{database.rpartition("/")[2]}"' in text


def test_the_exporter_of_postgresql_says_that_it_is_away(tmp_path: Path) -> None:
    try:
        text = postgres_scrape(f"postgresql://postgres@127.0.0.1:{free_port()}/x", tmp_path / "log")
    except ServerMissing as error:
        pytest.skip(str(error))
    assert value_of(text, "pg_up") == 0


@pytest.fixture(scope="module")
def redis_exporter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("exporter")
    try:
        with running_exporter(
            "prometheus-redis-exporter", SERVICES["redis-exporter"]["environment"], folder / "log"
        ) as url:
            yield url
    except ServerMissing as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("name", "maximum"), [("redis", 2**28), ("redis-sessions", 2**29)])
def test_one_exporter_asks_each_redis(redis_exporter: str, name: str, maximum: int, tmp_path: Path) -> None:
    """By the path and the parameter that prometheus.yml gives it."""
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = [each for each in config["scrape_configs"] if each["job_name"] == "redis"]
    assert f"{name}:6379" in job["static_configs"][0]["targets"]
    (target,) = [each["replacement"] for each in job["relabel_configs"] if each["target_label"] == "__param_target"]
    port = free_port()
    with composed_redis(SERVICES[name], port, tmp_path):
        text, deadline = "", time.monotonic() + START_DEADLINE_S
        while "redis_up 1" not in text and time.monotonic() < deadline:  # until it listens
            text = httpx.get(
                f"{redis_exporter}{job['metrics_path']}",
                params={"target": target.replace("$1", f"127.0.0.1:{port}")},
                timeout=30,
            ).text
    assert value_of(text, "redis_memory_max_bytes") == maximum
    assert value_of(text, "redis_aof_enabled") == 1
    assert {"redis_memory_used_bytes", "redis_aof_last_write_status"} <= metrics_of(text).keys()


def test_a_redis_that_is_away_is_told(redis_exporter: str) -> None:
    text = httpx.get(f"{redis_exporter}/scrape", params={"target": f"redis://127.0.0.1:{free_port()}"}).text
    assert value_of(text, "redis_up") == 0
