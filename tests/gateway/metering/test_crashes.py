"""kill -9 before and after every step of usage's way: what a client received is billed once."""

import asyncio
import multiprocessing
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.analytics import Analytics
from gateway.analytics.sums import TimeRange
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import HOUR_MS
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.reconciliation.reconciliation import reconcile
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.metering.relay.destination import Destination
from gateway.metering.relay.kafka_destination import KafkaDestination
from gateway.metering.signature import Verification
from gateway.metering.sink.intake import Intake
from gateway.metering.sink.kafka_source import KafkaSource
from gateway.metering.sink.sink import Sink
from tests.gateway.metering.crashing import TOKENS, Death, Record, Step, run_gateway, run_sink
from tests.gateway.metering.flows import relaying
from tests.support.kafka_server import KafkaServer
from tests.support.usage_requests import (
    NOW_MS,
    SIGNATURES,
    SIGNER,
    as_billed,
    billed,
    finish,
    journal_at,
    journalled,
    until,
)

MEMBER = "a"
GATEWAY_STEPS = (Step.OPEN, Step.PROGRESS, Step.CLOSE, Step.READ, Step.PRODUCE, Step.BROKER_ACK, Step.ACKNOWLEDGE)
SINK_STEPS = (Step.FETCH, Step.INSERT, Step.COMMIT)


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    """Of a server that has imported everything, so that a process starts in no time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.gateway.metering.crashing"])
    return context


@pytest.fixture
def kafka_url(kafka_server: KafkaServer) -> str:
    return f"kafka://{kafka_server.bootstrap}"


def dies(context: Any, target: Callable[..., None], *arguments: object) -> None:
    """Run a process until it has killed itself."""
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"it did not come to its end: {arguments}"


@asynccontextmanager
async def relaying_all(journal: Journal, destination: Destination) -> AsyncIterator[None]:
    """Relay until nothing is left."""
    async with relaying(journal, destination) as relay:
        yield
        await until(lambda: relay.backlog_events == 0)


async def sink_everything(analytics: Analytics, kafka_url: str, topic: str, events: int) -> None:
    """Run a sink until the store has `events` distinct events."""
    source = KafkaSource(
        KafkaCluster.from_url(kafka_url), topic, group=f"sink-{topic}", member=MEMBER, heartbeat_ms=300
    )
    sink = Sink(source, Intake(analytics, Verification(SIGNER)), linger_ms=50)
    running = asyncio.create_task(sink.run())

    async def arrived() -> bool:
        return running.done() or len(await billed(analytics)) >= events

    await until(arrived)
    sink.stop()
    await running


async def assert_billed_once(path: Path, analytics: Analytics) -> None:
    events = journalled(path)
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert await billed(analytics) == as_billed(events)
    day = TimeRange(NOW_MS - 24 * HOUR_MS, NOW_MS + 10_000 * 24 * HOUR_MS)
    assert not (await reconcile(path, analytics, day, SIGNATURES, now_ms=day.end_ms)).drift


async def assert_clients_agree(record: Record, analytics: Analytics) -> None:
    """The promise: what ended is billed whole; what was cut off is billed no more than was sent, and no less than what
    the journal had taken down."""
    bill = {request_id: (tokens, ending) for request_id, (_, tokens, _, ending) in (await billed(analytics)).items()}
    ended, sent, kept = (record.tokens(what) for what in ("ended", "sent", "kept"))
    assert ended, "the processes have lived long enough to end requests"
    assert {request_id: bill[request_id] for request_id in ended} == dict.fromkeys(ended, (TOKENS, "stop"))
    for request_id, (tokens, _) in bill.items():
        assert tokens <= sent[request_id], request_id
    for request_id, tokens in kept.items():
        assert bill[request_id][0] >= tokens, request_id


async def test_killed_gateway(
    processes: Any, kafka_url: str, topic: str, destination: KafkaDestination, analytics: Analytics, tmp_path: Path
) -> None:
    path, record = tmp_path / "journal.db", Record(tmp_path / "record")
    for death in [Death(step, after) for step in GATEWAY_STEPS for after in (False, True)]:
        await asyncio.to_thread(dies, processes, run_gateway, path, record, death, kafka_url, topic, "")
    async with journal_at(path) as journal, relaying_all(journal, destination):
        pass
    await sink_everything(analytics, kafka_url, topic, journal.last_sequence)
    await assert_billed_once(path, analytics)
    await assert_clients_agree(record, analytics)


async def test_a_gateway_without_kafka_that_is_killed(
    processes: Any, clickhouse_url: str, analytics: Analytics, tmp_path: Path
) -> None:
    path, record = tmp_path / "journal.db", Record(tmp_path / "record")
    for death in [Death(step, after) for step in (Step.INSERT, Step.ACKNOWLEDGE) for after in (False, True)]:
        await asyncio.to_thread(dies, processes, run_gateway, path, record, death, None, "", clickhouse_url)
    async with journal_at(path) as journal, relaying_all(journal, AnalyticsDestination(analytics, SIGNER)):
        pass
    await assert_billed_once(path, analytics)
    await assert_clients_agree(record, analytics)


async def test_a_killed_sink(
    processes: Any,
    kafka_url: str,
    cluster: KafkaCluster,
    topic: str,
    clickhouse_url: str,
    analytics: Analytics,
    journal: Journal,
) -> None:
    for death in [Death(step, after, passing=1) for step in SINK_STEPS for after in (False, True)]:
        async with relaying_all(journal, KafkaDestination(cluster, topic, SIGNER)):
            await finish(journal, 50)
        await asyncio.to_thread(dies, processes, run_sink, kafka_url, topic, clickhouse_url, MEMBER, death)
    await sink_everything(analytics, kafka_url, topic, journal.last_sequence)
    await assert_billed_once(journal.path, analytics)
