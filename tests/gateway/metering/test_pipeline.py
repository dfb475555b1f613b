"""Journal, Kafka, ClickHouse: what goes in at one end comes out at the other, once, and in the face of a broker or a
store that is away."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kafka import KafkaProducer

from gateway.analytics import Analytics
from gateway.metering.event import COLUMNS, SCHEMA_VERSION, UsageEvent
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import JournalRow
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.metering.relay.destination import Backoff
from gateway.metering.relay.kafka_destination import KafkaDestination
from gateway.metering.relay.relay import Relay
from gateway.metering.signature import HEADER, Verification
from gateway.metering.sink.intake import Intake, Message, row_of
from gateway.metering.sink.kafka_source import KafkaSource
from gateway.metering.sink.sink import Sink
from tests.support.kafka_server import PARTITIONS, KafkaServer
from tests.support.usage_events import an_event
from tests.support.usage_requests import SIGNER, analytics_at, as_billed, billed, finish, journal_at, journalled, until


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"usage-{uuid4().hex[:8]}"
    kafka_server.create_topic(name)
    return name


def cluster_of(server: KafkaServer) -> KafkaCluster:
    return KafkaCluster.from_url(f"kafka://{server.bootstrap}")


@asynccontextmanager
async def relaying(journal: Journal, cluster: KafkaCluster, topic: str) -> AsyncIterator[Relay]:
    relay = Relay(journal, KafkaDestination(cluster, topic, SIGNER), backoff=Backoff(0.05, 0.5))
    relay.start()
    try:
        yield relay
    finally:
        await relay.aclose(deadline_s=10)


@asynccontextmanager
async def sinking(analytics: Analytics, cluster: KafkaCluster, topic: str, member: str = "a") -> AsyncIterator[Sink]:
    source = KafkaSource(cluster, topic, group=f"sink-{topic}", member=member, heartbeat_ms=300)
    sink = Sink(source, Intake(analytics, Verification(SIGNER)), linger_ms=50, backoff=Backoff(0.05, 0.5))
    running = asyncio.create_task(sink.run())
    try:
        yield sink
    finally:
        sink.stop()
        await running


async def test_events_arrive_once(kafka_server: KafkaServer, clickhouse_url: str, topic: str, tmp_path: Path) -> None:
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


def of_every_version() -> list[UsageEvent]:
    """As this program and the ones before it have written them; what a version does not say is as in `former`."""
    former = {"routed_model": "m", "served_model": "m", "route_reason": "explicit"}
    return [
        an_event(sequence=1, schema_version=1, **former),
        an_event(sequence=2, schema_version=2),
        an_event(sequence=3, schema_version=SCHEMA_VERSION, paused_ms=70),
    ]


async def stored(analytics: Analytics) -> list[tuple[Any, ...]]:
    return await analytics.query(f"SELECT {', '.join(COLUMNS)} FROM usage_events ORDER BY sequence")


async def test_events_of_former_versions_are_read(kafka_server: KafkaServer, clickhouse_url: str, topic: str) -> None:
    cluster, events = cluster_of(kafka_server), of_every_version()
    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap)
    for event in events:
        producer.send(topic, value=event.to_json(), key=b"t0", headers=[(HEADER, SIGNER.sign(event).encode())])
    producer.flush()
    producer.close()
    async with analytics_at(clickhouse_url) as analytics, sinking(analytics, cluster, topic) as sink:
        await until(lambda: sink.counts.events_total == len(events))
        assert sink.counts.dead_letters_total == 0
        assert await stored(analytics) == [row_of(event) for event in events]


async def test_events_of_former_versions_come_out_of_a_journal(clickhouse_url: str) -> None:
    events = of_every_version()
    async with analytics_at(clickhouse_url) as analytics:
        rows = [JournalRow(event.sequence, event.to_json()) for event in events]
        await AnalyticsDestination(analytics, SIGNER).deliver(rows)
        assert await stored(analytics) == [row_of(event) for event in events], "as reconciliation compares them"


async def test_the_source_says_how_far_it_is_ahead(kafka_server: KafkaServer, topic: str, tmp_path: Path) -> None:
    cluster = cluster_of(kafka_server)
    source = KafkaSource(cluster, topic, group=f"sink-{topic}", member="a", heartbeat_ms=300)
    fetched: list[Message] = []

    async def is_ahead_by(count: int, *, more: bool) -> bool:
        """After a fetch by one who holds all partitions."""
        answer = await source.fetch(more=more)
        for messages in answer.messages.values():
            fetched.extend(messages)
        behind = await source.behind()
        return len(behind) == len(answer.assigned) == PARTITIONS and sum(behind.values()) == count

    async with journal_at(tmp_path / "journal.db") as journal, relaying(journal, cluster, topic):
        assert await source.behind() == {}, "it holds no partition yet"
        await until(lambda: is_ahead_by(0, more=True))
        await finish(journal, 20)
        await until(lambda: is_ahead_by(20, more=False))
        assert not fetched
        await until(lambda: is_ahead_by(0, more=True))
    await source.aclose()
    assert len(fetched) == 20
    assert all(abs(each.timestamp_ms / 1000 - time.time()) < 600 for each in fetched)


async def test_a_topic_that_is_missing_is_said_until_it_is_made(
    kafka_server: KafkaServer, clickhouse_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.metering.relay.kafka_destination.MAX_BLOCK_MS", 500)
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


async def test_usage_that_somebody_else_sends_is_not_billed(
    kafka_server: KafkaServer, clickhouse_url: str, topic: str, tmp_path: Path
) -> None:
    cluster = cluster_of(kafka_server)
    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap)
    forged = [an_event(sequence=n, source="invented", tenant_id="t0") for n in range(1, 6)]
    wrong = [None, [], [(HEADER, b"")], [(HEADER, b"\xff\xfe")], [(HEADER, SIGNER.sign(forged[0]).encode())]]
    for event, headers in zip(forged, wrong, strict=True):
        producer.send(topic, value=event.to_json(), key=b"t0", headers=headers)
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
        await until(lambda: sink.counts.unauthenticated_total == len(forged))
        assert await billed(analytics) == as_billed(journalled(journal.path))
        kept = await analytics.query(
            "SELECT payload FROM usage_dead_letters WHERE topic = {topic:String} AND startsWith(reason, 'not auth')",
            {"topic": topic},
        )
        assert {payload for (payload,) in kept} == {event.to_json().decode() for event in forged}


async def test_what_is_no_event_ends_among_the_dead_letters(
    kafka_server: KafkaServer, clickhouse_url: str, topic: str, tmp_path: Path
) -> None:
    cluster = cluster_of(kafka_server)
    wrong = [b"", b"\xff\xfe", b'{"schema_version": 2}', b"[" * 10_000]
    producer = KafkaProducer(bootstrap_servers=kafka_server.bootstrap)
    said_ms = [1_793_491_200_123, 0, 1, 1_793_491_200_123]
    for body, timestamp_ms in zip(wrong, said_ms, strict=True):
        producer.send(topic, value=body or None, key=b"t0", timestamp_ms=timestamp_ms)
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
            "SELECT reason, hex(payload), toUnixTimestamp64Milli(received_at) FROM usage_dead_letters "
            "WHERE topic = {topic:String} ORDER BY offset",
            {"topic": topic},
        )
        assert [bytes.fromhex(payload) for _, payload, _ in dead] == wrong
        assert all(reason for reason, _, _ in dead)
        assert [received_ms for _, _, received_ms in dead] == said_ms
        assert await billed(analytics) == as_billed(journalled(journal.path))
