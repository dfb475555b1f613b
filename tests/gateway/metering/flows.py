"""Relays and sinks that run for the length of a block."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from kafka import KafkaProducer

from gateway.analytics import Analytics
from gateway.metering.journal.journal import Journal
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.relay.destination import Backoff, Destination
from gateway.metering.relay.relay import Relay
from gateway.metering.signature import Verification
from gateway.metering.sink.intake import Intake
from gateway.metering.sink.kafka_source import KafkaSource
from gateway.metering.sink.sink import Sink
from tests.support.kafka_server import KafkaServer
from tests.support.usage_requests import SIGNER

BACKOFF = Backoff(0.05, 0.3)


@asynccontextmanager
async def relaying(journal: Journal, destination: Destination) -> AsyncIterator[Relay]:
    relay = Relay(journal, destination, batch_events=200, backoff=BACKOFF)
    relay.start()
    try:
        yield relay
    finally:
        await relay.aclose(deadline_s=10)


@asynccontextmanager
async def sinking(
    analytics: Analytics, cluster: KafkaCluster, topic: str, members: int = 1
) -> AsyncIterator[list[Sink]]:
    """Sinks of one consumer group."""
    sources = [KafkaSource(cluster, topic, group=f"sink-{topic}", heartbeat_ms=300) for _ in range(members)]
    intakes = [Intake(analytics, Verification(SIGNER)) for _ in range(members)]
    sinks = [Sink(*each, linger_ms=20, backoff=BACKOFF) for each in zip(sources, intakes, strict=True)]
    running = [asyncio.create_task(sink.run()) for sink in sinks]
    try:
        yield sinks
    finally:
        for sink in sinks:
            sink.stop()
        await asyncio.gather(*running)


def send(server: KafkaServer, topic: str, messages: Iterable[dict[str, object]]) -> None:
    """Send messages, each given by the arguments of `KafkaProducer.send`, and wait until they are in the topic."""
    producer = KafkaProducer(bootstrap_servers=server.bootstrap)
    for message in messages:
        producer.send(topic, **message)
    producer.flush()
    producer.close()
