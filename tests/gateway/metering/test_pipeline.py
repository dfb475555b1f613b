"""Journal, Kafka, ClickHouse: what goes in at one end comes out at the other, once, and in the face of a broker or a
store that is away."""

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest

from gateway.analytics import Analytics
from gateway.metering.event import COLUMNS, SCHEMA_VERSION, UsageEvent
from gateway.metering.journal.journal import Journal
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.metering.relay.kafka_destination import KafkaDestination
from gateway.metering.signature import HEADER
from gateway.metering.sink.intake import Message, row_of
from gateway.metering.sink.kafka_source import KafkaSource
from tests.gateway.metering.flows import relaying, send, sinking
from tests.support.kafka_server import PARTITIONS, KafkaServer
from tests.support.usage_events import an_event
from tests.support.usage_requests import (
    SIGNER,
    as_billed,
    billed,
    finish,
    journalled,
    rows_of,
    until,
)


async def test_events_arrive_once(
    analytics: Analytics, journal: Journal, cluster: KafkaCluster, topic: str, destination: KafkaDestination
) -> None:
    async with relaying(journal, destination) as relay, sinking(analytics, cluster, topic) as (sink,):
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
        an_event(sequence=3, schema_version=3, paused_ms=70),
        an_event(sequence=4, schema_version=4, http_request_id="req_4", endpoint="/v1/x", streamed=True),
        an_event(sequence=5, schema_version=5, http_status=503),
        an_event(sequence=6, schema_version=SCHEMA_VERSION, estimated=True),
    ]


async def stored(analytics: Analytics) -> list[tuple[Any, ...]]:
    return await analytics.query(f"SELECT {', '.join(COLUMNS)} FROM usage_events ORDER BY sequence")


async def test_events_of_former_versions_are_read(
    analytics: Analytics, kafka_server: KafkaServer, cluster: KafkaCluster, topic: str
) -> None:
    events = of_every_version()
    signatures = [[(HEADER, SIGNER.sign(event).encode())] for event in events]
    bodies = [{"value": event.to_json(), "key": b"t0"} for event in events]
    send(kafka_server, topic, [body | {"headers": signed} for body, signed in zip(bodies, signatures, strict=True)])
    async with sinking(analytics, cluster, topic) as (sink,):
        await until(lambda: sink.counts.events_total == len(events))
        assert sink.counts.dead_letters_total == 0
        assert await stored(analytics) == [row_of(event) for event in events]


async def test_events_of_former_versions_come_out_of_a_journal(analytics: Analytics) -> None:
    events = of_every_version()
    await AnalyticsDestination(analytics, SIGNER).deliver(rows_of(events))
    assert await stored(analytics) == [row_of(event) for event in events], "as reconciliation compares them"


async def test_the_source_says_how_far_it_is_ahead(
    journal: Journal, cluster: KafkaCluster, topic: str, destination: KafkaDestination
) -> None:
    source = KafkaSource(cluster, topic, group=f"sink-{topic}", member="a", heartbeat_ms=300)
    fetched: list[Message] = []

    async def is_ahead_by(count: int, *, more: bool) -> bool:
        """After a fetch by one who holds all partitions."""
        answer = await source.fetch(more=more)
        for messages in answer.messages.values():
            fetched.extend(messages)
        behind = await source.behind()
        return len(behind) == len(answer.assigned) == PARTITIONS and sum(behind.values()) == count

    async with relaying(journal, destination):
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
    analytics: Analytics, journal: Journal, cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.metering.relay.kafka_destination.MAX_BLOCK_MS", 500)
    topic = f"late-{uuid4().hex[:8]}"
    destination = KafkaDestination(cluster, topic, SIGNER)
    async with relaying(journal, destination) as relay, sinking(analytics, cluster, topic) as (sink,):
        await finish(journal, 10)
        await until(lambda: relay.last_error is not None)
        assert topic in (relay.last_error or "")
        await asyncio.to_thread(cluster.create_topic, topic, partitions=1, replication=1)
        await until(lambda: relay.backlog_events == 0)
        await until(lambda: sink.counts.events_total == 10)
        assert await billed(analytics) == as_billed(journalled(journal.path))


async def test_usage_that_somebody_else_sends_is_not_billed(
    kafka_server: KafkaServer,
    cluster: KafkaCluster,
    topic: str,
    destination: KafkaDestination,
    analytics: Analytics,
    journal: Journal,
) -> None:
    forged = [an_event(sequence=n, source="invented", tenant_id="t0") for n in range(1, 6)]
    wrong = [None, [], [(HEADER, b"")], [(HEADER, b"\xff\xfe")], [(HEADER, SIGNER.sign(forged[0]).encode())]]
    bodies = [{"value": event.to_json(), "key": b"t0"} for event in forged]
    send(kafka_server, topic, [body | {"headers": headers} for body, headers in zip(bodies, wrong, strict=True)])
    async with relaying(journal, destination), sinking(analytics, cluster, topic) as (sink,):
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
    kafka_server: KafkaServer,
    cluster: KafkaCluster,
    topic: str,
    destination: KafkaDestination,
    analytics: Analytics,
    journal: Journal,
) -> None:
    wrong = [b"", b"\xff\xfe", b'{"schema_version": 2}', b"[" * 10_000]
    said_ms = [1_793_491_200_123, 0, 1, 1_793_491_200_123]
    sent = zip(wrong, said_ms, strict=True)
    send(kafka_server, topic, [{"value": body or None, "key": b"t0", "timestamp_ms": ms} for body, ms in sent])
    async with relaying(journal, destination), sinking(analytics, cluster, topic) as (sink,):
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
