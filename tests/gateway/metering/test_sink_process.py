"""`turnpike sink` as an operator runs it."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from gateway.analytics import migrate, open_analytics, schema
from gateway.management.cli import app
from gateway.metering.event import COLUMNS, HTTP_FIELDS, UsageEvent
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.relay.destination import Backoff
from gateway.metering.relay.kafka_destination import KafkaDestination
from gateway.metering.relay.relay import Relay
from gateway.metering.sink.intake import EVENTS_TABLE, row_of
from tests.gateway.metering.flows import send
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.kafka_server import KafkaServer
from tests.support.servers import free_port
from tests.support.usage_requests import (
    PEPPER,
    SIGNER,
    an_event,
    analytics_at,
    as_billed,
    billed,
    finish,
    journal_at,
    journalled,
    until,
)

TURNPIKE = Path(sys.executable).with_name("turnpike")


@contextmanager
def turnpike(*arguments: str, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen([TURNPIKE, *arguments], env=os.environ | environment, stderr=output, stdout=output)
    try:
        yield process
    finally:
        process.terminate()  # not killed: the group would wait 45 s for a member that was
        try:
            process.wait(timeout=30)
        finally:
            process.kill()
            process.wait()


def environment_of(server: KafkaServer, topic: str, analytics_url: str) -> dict[str, str]:
    return {
        "TURNPIKE_KAFKA_URL": f"kafka://{server.bootstrap}",
        "TURNPIKE_KAFKA_TOPIC": topic,
        "TURNPIKE_ANALYTICS_URL": analytics_url,
        "TURNPIKE_KEY_PEPPER": PEPPER.decode(),
    }


def metric(port: int, name: str) -> float:
    """Its value; -1 before there is an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            lines: Sequence[str] = answer.read().decode().splitlines()
    except OSError:
        return -1
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


async def test_it_makes_its_tables_takes_what_there_is_and_ends_when_told(
    kafka_server: KafkaServer, clickhouse_server: ClickHouseServer, no_settings: Path, tmp_path: Path
) -> None:
    url, port, log = clickhouse_server.new_database(), free_port(), tmp_path / "log"
    environment = environment_of(kafka_server, f"usage-{uuid4().hex[:8]}", url)
    made = CliRunner(env=environment).invoke(app, ["kafka", "create-topic", "--partitions", "2"])
    assert environment["TURNPIKE_KAFKA_TOPIC"] in made.output
    again = CliRunner(env=environment).invoke(app, ["kafka", "create-topic"])
    assert (again.exit_code, environment["TURNPIKE_KAFKA_TOPIC"] in again.output) == (0, True)
    assert again.output != made.output

    async with journal_at(tmp_path / "journal.db") as journal:
        destination = KafkaDestination(
            KafkaCluster.from_url(environment["TURNPIKE_KAFKA_URL"]), environment["TURNPIKE_KAFKA_TOPIC"], SIGNER
        )
        relay = Relay(journal, destination, backoff=Backoff(0.05, 0.5))
        relay.start()
        with turnpike("sink", "--metrics-port", str(port), environment=environment, log=log) as process:
            await finish(journal, 100)
            await until(lambda: metric(port, "turnpike_sink_events_total") == 100 or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 0, log.read_text()
        await relay.aclose(5)
        async with analytics_at(url) as analytics:
            assert await billed(analytics) == as_billed(journalled(journal.path))
    assert clickhouse_server.password not in log.read_text()


@pytest.mark.parametrize("upgraded", [True, False])
async def test_unsigned_usage_is_taken_in_the_days_of_an_upgrade_alone(
    upgraded: bool, kafka_server: KafkaServer, topic: str, clickhouse_url: str, no_settings: Path, tmp_path: Path
) -> None:
    """Events that gateways of a former version had sent, to a store that has usage of that version and to a new one."""
    port, log = free_port(), tmp_path / "log"
    if upgraded:
        await make_former_store(clickhouse_url, an_event(1))
    sent = [an_event(n) for n in range(2, 6)]
    send(kafka_server, topic, [{"value": event.to_json(), "key": b"t0"} for event in sent])
    environment = environment_of(kafka_server, topic, clickhouse_url)
    name = "turnpike_sink_unsigned_total" if upgraded else "turnpike_sink_unauthenticated_total"
    with turnpike("sink", "--metrics-port", str(port), environment=environment, log=log) as process:
        await until(lambda: metric(port, name) == len(sent) or process.poll() is not None)
        assert process.poll() is None, log.read_text()
    async with analytics_at(clickhouse_url) as analytics:
        taken = [an_event(1), *sent] if upgraded else []
        assert set(await billed(analytics)) == {event.request_id for event in taken}


async def make_former_store(url: str, event: UsageEvent) -> None:
    """With tables and an event of before signatures."""
    before = [each for each in schema.shipped_migrations() if each.version < 6]
    later = HTTP_FIELDS | {"http_status", "estimated"}
    row = {name: value for name, value in zip(COLUMNS, row_of(event), strict=True) if name not in later}
    async with aclosing(open_analytics(url)) as analytics:
        with patch.object(schema, "shipped_migrations", return_value=before):
            await migrate(analytics)
        await analytics.insert(EVENTS_TABLE, tuple(row), [tuple(row.values())])


def test_without_the_gateways_pepper_it_does_not_start(no_settings: Path, tmp_path: Path) -> None:
    """Under one of its own it would put all usage aside."""
    environment = {"TURNPIKE_KAFKA_URL": "kafka://127.0.0.1:1", "TURNPIKE_DATA_DIR": str(tmp_path)}
    done = subprocess.run([TURNPIKE, "sink"], capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 1
    assert "TURNPIKE_KEY_PEPPER" in done.stderr
    assert list(tmp_path.glob("secrets*")) == []


def test_without_kafka_there_is_nothing_to_do(no_settings: Path) -> None:
    for command in (["sink"], ["kafka", "create-topic"]):
        done = subprocess.run([TURNPIKE, *command], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("turnpike: kafka_url ")


def test_a_kafka_that_is_away_is_said(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.metering.kafka_cluster.BOOTSTRAP_TIMEOUT_MS", 300)
    monkeypatch.setenv("TURNPIKE_KAFKA_URL", f"kafka://127.0.0.1:{free_port()}")
    result = CliRunner().invoke(app, ["kafka", "create-topic"])
    assert result.exit_code == 1
    assert result.output.startswith("turnpike: ")
    assert "turnpike.usage" in result.output
