"""Journal, Kafka, ClickHouse: what goes in at one end comes out at the other, once, and in the face of a broker or a
store that is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from kafka import KafkaProducer

from gateway.analytics import Analytics
from gateway.metering.destination import Backoff
from gateway.metering.intake import Intake
from gateway.metering.journal import Journal
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.kafka_destination import KafkaDestination
from gateway.metering.kafka_source import KafkaSource
from gateway.metering.relay import Relay
from gateway.metering.sink import Sink
from tests.gateway.metering.usage import analytics_at, as_billed, billed, finish, journal_at, journalled, until
from tests.kafka_server import KafkaServer


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"usage-{uuid4().hex[:8]}"
    kafka_server.create_topic(name)
    return name


def cluster_of(server: KafkaServer) -> KafkaCluster:
    return KafkaCluster.from_url(f"kafka://{server.bootstrap}")


@asynccontextmanager
async def relaying(journal: Journal, cluster: KafkaCluster, topic: str) -> AsyncIterator[Relay]:
    relay = Relay(journal, KafkaDestination(cluster, topic), backoff=Backoff(0.05, 0.5))
    relay.start()
    try:
        yield relay
    finally:
        await relay.aclose(deadline_s=10)


@asynccontextmanager
async def sinking(analytics: Analytics, cluster: KafkaCluster, topic: str, member: str = "a") -> AsyncIterator[Sink]:
    source = KafkaSource(cluster, topic, group=f"sink-{topic}", member=member, heartbeat_ms=300)
    sink = Sink(source, Intake(analytics), linger_ms=50, backoff=Backoff(0.05, 0.5))
    running = asyncio.create_task(sink.run())
    try:
        yield sink
    finally:
        sink.stop()
        await running


@pytest.mark.anyio
async def test_every_event_arrives_once(
    kafka_server: KafkaServer, clickhouse_url: str, topic: str, tmp_path: Path
) -> None:
    cluster = cluster_of(kafka_server)
    async with (
        analytics_at(clickhouse_url) as analytics,
        journal_at(tmp_path / "journal.db") as journal,
        relaying(journal, cluster, topic) as relay,
        sinking(analytics, cluster, topic) as sink,
    ):
        for _ in range(3):
            await finish(journal, 700)
        await until(lambda: relay.backlog_events == 0)
        await until(lambda: sink.counts.events_total == 2100)
        assert await billed(analytics) == as_billed(journalled(journal.path))
        assert (relay.last_error, sink.last_error, sink.held_messages) == (None, None, 0)


@pytest.mark.anyio
async def test_a_topic_that_is_missing_is_said_until_it_is_made(
    kafka_server: KafkaServer, clickhouse_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.metering.kafka_destination.MAX_BLOCK_MS", 500)
    cluster, topic = cluster_of(kafka_server), f"late-{uuid4().hex[:8]}"
    async with (
        analytics_at(clickhouse_url) as analytics,
        journal_at(tmp_path / "journal.db") as journal,
        relaying(journal, cluster, topic) as relay,
        sinking(analytics, cluster, topic) as sink,
    ):
        await finish(journal, 10)
        await until(lambda: relay.last_error is not None)
        assert topic in (relay.last_error or "")
        await asyncio.to_thread(cluster.create_topic, topic, partitions=1, replication=1)
        await until(lambda: relay.backlog_events == 0)
        await until(lambda: sink.counts.events_total == 10)
        assert await billed(analytics) == as_billed(journalled(journal.path))


@pytest.mark.anyio
async def test_what_is_no_event_ends_among_the_dead_letters(
    kafka_server: KafkaServer, clickhouse_url: str, topic: str, tmp_path: Path
) -> None:
    cluster = cluster_of(kafka_server)
    wrong = [b"", b"\xff\xfe", b'{"schema_version": 2}', b"[" * 10_000]
    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap)
    for body in wrong:
        producer.send(topic, value=body or None, key=b"t0")
    producer.flush()
    producer.close()
    async with (
        analytics_at(clickhouse_url) as analytics,
        journal_at(tmp_path / "journal.db") as journal,
        relaying(journal, cluster, topic),
        sinking(analytics, cluster, topic) as sink,
    ):
        await finish(journal, 10)
        await until(lambda: sink.counts.events_total == 10)
        await until(lambda: sink.counts.dead_letters_total == len(wrong))
        dead = await analytics.query(
            "SELECT offset, reason, hex(payload) FROM usage_dead_letters WHERE topic = {topic:String} ORDER BY offset",
            {"topic": topic},
        )
        assert [bytes.fromhex(payload) for _, _, payload in dead] == wrong
        assert all(reason for _, reason, _ in dead)
        assert await billed(analytics) == as_billed(journalled(journal.path))
