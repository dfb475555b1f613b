"""The services of docker-compose.yml, started here: from a request at the gateway to its event in ClickHouse."""

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import clickhouse_connect
import httpx
import pytest
import yaml

from gateway.config.settings import Settings
from tests.deploy.compose import ROOT, load_compose, required_variables
from tests.deploy.composed import ComposedKafka, Host, can_make_containers, composed_redis, replaced
from tests.deploy.prometheus_server import prometheus_program, running_prometheus
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.servers import PostgresServer, ServerMissing, free_port

SECRETS = {name: f"{index:064x}" for index, name in enumerate(sorted(required_variables()))} | {
    "CLICKHOUSE_PASSWORD": quote(ClickHouseServer.password, safe="")
}
SERVICES: dict[str, dict[str, Any]] = load_compose(SECRETS)["services"]


@pytest.fixture(scope="module")
def host(
    postgres: PostgresServer,
    clickhouse_server: ClickHouseServer,
    smollm2_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Host]:
    """The stores, running with the compose file's settings, and where to start what uses them."""
    if not can_make_containers():
        pytest.skip("needs the right to make mount namespaces, and setpriv: apt-get install -y util-linux")
    _make_postgres_database(postgres.url)
    clickhouse = clickhouse_connect.get_client(
        host="127.0.0.1",
        port=clickhouse_server.port,
        username=clickhouse_server.user,
        password=clickhouse_server.password,
    )
    clickhouse.command("CREATE DATABASE turnpike")  # as the image does for CLICKHOUSE_DB
    folder = tmp_path_factory.mktemp("compose")
    redis_ports = {name: free_port() for name in ("redis", "redis-sessions")}
    with ExitStack() as stack:
        try:
            (folder / "kafka").mkdir()
            kafka = ComposedKafka(folder / "kafka", SERVICES["kafka"]["environment"])
            prometheus_program("prometheus")
            kafka.start()
            stack.callback(kafka.stop)
            for name, port in redis_ports.items():
                (folder / name).mkdir()
                stack.enter_context(composed_redis(SERVICES[name], port, folder / name))
        except ServerMissing as error:
            pytest.skip(str(error))
        postgres_port = postgres.url.rpartition(":")[2].partition("/")[0]
        (folder / "state").mkdir()
        yield Host(
            places={
                "@postgres:5432": f"@127.0.0.1:{postgres_port}",
                **{f"@{name}:6379": f"@127.0.0.1:{port}" for name, port in redis_ports.items()},
                "//kafka:9092": f"//{kafka.bootstrap}",
                "@clickhouse:8123": f"@127.0.0.1:{clickhouse_server.port}",
                # In a container of its own each could have the image's port; here they share one address.
                "8080": str(free_port()),
                "9464": str(free_port()),
                "0.0.0.0": "127.0.0.1",
                # Of the stores' own health checks.
                "5432": postgres_port,
                "6379": str(redis_ports["redis"]),
                "8123": str(clickhouse_server.port),
            },
            state=folder / "state",
            models=Settings().models_dir,
        )
        clickhouse.command("DROP DATABASE turnpike SYNC")
        clickhouse.close()


@pytest.mark.parametrize("name", ["postgres", "redis", "clickhouse"])
def test_a_store_is_healthy_by_the_check_of_the_compose_file(host: Host, name: str) -> None:
    kind, program, *_ = SERVICES[name]["healthcheck"]["test"]
    if kind == "CMD" and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: apt-get install -y postgresql-client wget")
    host.await_healthy({"environment": {}, **SERVICES[name]})


def test_redis_wants_its_password(host: Host) -> None:
    service = {**SERVICES["redis"], "environment": {"REDISCLI_AUTH": "another"}}
    with pytest.MonkeyPatch.context() as patch, pytest.raises(AssertionError, match="is not content"):
        patch.setattr("tests.deploy.composed.HEALTH_DEADLINE_S", 0.5)
        host.await_healthy(service)


def test_a_request_becomes_an_event_in_clickhouse_and_prometheus_sees_both_ends(
    host: Host, clickhouse_server: ClickHouseServer, tmp_path: Path
) -> None:
    topic, gateway, sink = SERVICES["topic"], SERVICES["gateway"], SERVICES["sink"]
    assert host.run(topic, *topic["command"]) == "created the topic turnpike.usage"
    with (
        host.running(sink, *sink["command"], log=tmp_path / "sink.log"),
        host.running(gateway, "serve", log=tmp_path / "gateway.log"),
    ):
        host.run(gateway, "tenant", "create", "acme", "--tier", "premium")
        key = host.run(gateway, "key", "create", "--tenant", "acme")
        answer = httpx.post(
            f"http://127.0.0.1:{host.places['8080']}/v1/chat/completions",
            headers={"Authorization": f"Bearer {key}"},
            json={"model": "smollm2", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        events = _events(clickhouse_server)
        assert _scraped(host) == {"turnpike-gateway", "turnpike-sink"}
    assert events == [("smollm2", usage["prompt_tokens"], usage["completion_tokens"])]
    # The rest is in PostgreSQL and ClickHouse, and the pepper comes from the environment. The lock is of the socket of
    # commands.
    assert {path.name for path in host.state.iterdir()} == {"usage", "admin.sock.lock"}


def _make_postgres_database(url: str) -> None:
    """As the image does for POSTGRES_USER and POSTGRES_DB."""

    async def make() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute("DROP DATABASE IF EXISTS turnpike")
        await connection.execute("DROP ROLE IF EXISTS turnpike")
        await connection.execute("CREATE ROLE turnpike LOGIN SUPERUSER")
        await connection.execute("CREATE DATABASE turnpike OWNER turnpike")
        await connection.close()

    asyncio.run(make())


def _events(server: ClickHouseServer) -> list[tuple[Any, ...]]:
    client = clickhouse_connect.get_client(
        host="127.0.0.1", port=server.port, username=server.user, password=server.password, database="turnpike"
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            rows = client.query(
                "SELECT served_model, prompt_tokens, completion_tokens FROM usage_events FINAL"
            ).result_rows
            if rows:
                return [tuple(row) for row in rows]
            time.sleep(0.1)
        return []
    finally:
        client.close()


def _scraped(host: Host) -> set[str]:
    """The jobs of prometheus.yml that answer, of ours."""
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    text = yaml.safe_dump(
        {
            "global": {"scrape_interval": "500ms"},
            "scrape_configs": [each for each in config["scrape_configs"] if each["job_name"].startswith("turnpike-")],
        }
    )
    places = {"gateway:8080": f"127.0.0.1:{host.places['8080']}", "sink:9464": f"127.0.0.1:{host.places['9464']}"}
    up: set[str] = set()
    with running_prometheus(replaced(text, places)) as prometheus:
        deadline = time.monotonic() + 60
        while len(up) < 2 and time.monotonic() < deadline:
            found = httpx.get(f"{prometheus.url}/api/v1/query", params={"query": "up == 1"}).json()
            up = {each["metric"]["job"] for each in found["data"]["result"]}
            time.sleep(0.1)
    return up
