"""`turnpike sink` as an operator runs it."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.metering.destination import Backoff
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.kafka_destination import KafkaDestination
from gateway.metering.relay import Relay
from tests.clickhouse_server import ClickHouseServer
from tests.gateway.metering.usage import analytics_at, as_billed, billed, finish, journal_at, journalled, until
from tests.kafka_server import KafkaServer
from tests.servers import free_port

TURNPIKE = Path(sys.executable).with_name("turnpike")


@contextmanager
def turnpike(*arguments: str, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen([TURNPIKE, *arguments], env=os.environ | environment, stderr=output, stdout=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def metric(port: int, name: str) -> float:
    """Its value; -1 before there is an answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            lines: Sequence[str] = answer.read().decode().splitlines()
    except OSError:
        return -1
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


@pytest.mark.anyio
async def test_it_makes_its_tables_takes_what_there_is_and_ends_when_told(
    kafka_server: KafkaServer, clickhouse_server: ClickHouseServer, no_settings: Path, tmp_path: Path
) -> None:
    url, port, log = clickhouse_server.new_database(), free_port(), tmp_path / "log"
    environment = {
        "TURNPIKE_KAFKA_URL": f"kafka://{kafka_server.bootstrap}",
        "TURNPIKE_KAFKA_TOPIC": f"usage-{uuid4().hex[:8]}",
        "TURNPIKE_ANALYTICS_URL": url,
    }
    made = CliRunner(env=environment).invoke(app, ["kafka", "create-topic", "--partitions", "2"])
    assert made.output == f"created the topic {environment['TURNPIKE_KAFKA_TOPIC']}\n"
    again = CliRunner(env=environment).invoke(app, ["kafka", "create-topic"])
    assert (again.exit_code, again.output.partition(" the topic")[0]) == (0, "there was already")

    async with journal_at(tmp_path / "journal.db") as journal:
        destination = KafkaDestination(
            KafkaCluster.from_url(environment["TURNPIKE_KAFKA_URL"]), environment["TURNPIKE_KAFKA_TOPIC"]
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


def test_without_kafka_there_is_nothing_to_do(no_settings: Path) -> None:
    for command in (["sink"], ["kafka", "create-topic"]):
        done = subprocess.run([TURNPIKE, *command], capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr.startswith("turnpike: kafka_url is not set")


def test_a_kafka_that_is_away_is_said(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.metering.kafka_cluster.BOOTSTRAP_TIMEOUT_MS", 300)
    monkeypatch.setenv("TURNPIKE_KAFKA_URL", f"kafka://127.0.0.1:{free_port()}")
    result = CliRunner().invoke(app, ["kafka", "create-topic"])
    assert result.exit_code == 1
    assert result.output.startswith("turnpike: the topic turnpike.usage could not be created")
