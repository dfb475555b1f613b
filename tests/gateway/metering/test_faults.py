"""Kafka and ClickHouse away in every way, and messages that come more than once: what is billed stays the same."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from kafka import KafkaConsumer, TopicPartition

from gateway.analytics import Analytics, AnalyticsAway
from gateway.analytics.clickhouse import ClickHouse, ServerAddress
from gateway.analytics.rollups import find_drift
from gateway.analytics.sums import Grain, TimeRange
from gateway.metering import kafka_cluster
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import HOUR_MS
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.relay import kafka_destination
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.metering.relay.destination import Backoff
from gateway.metering.relay.kafka_destination import KafkaDestination
from gateway.metering.relay.relay import Relay
from tests.gateway.metering.flows import relaying, send, sinking
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.fault_proxy import Fault, fault_proxy
from tests.support.kafka_server import KafkaServer
from tests.support.usage_requests import (
    NOW_MS,
    SIGNER,
    analytics_at,
    as_billed,
    billed,
    finish,
    journalled,
    until,
)

FAULTS = [Fault.REFUSE, Fault.RESET, Fault.SLOW, Fault.BLACK_HOLE]
ANSWER_TIMEOUT_S = 1.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka clients whose deadlines are short; their order stays."""
    monkeypatch.setattr(kafka_cluster, "BOOTSTRAP_TIMEOUT_MS", 1_000)
    monkeypatch.setattr(kafka_destination, "MAX_BLOCK_MS", 1_000)
    monkeypatch.setattr(kafka_destination, "REQUEST_TIMEOUT_MS", 1_000)
    monkeypatch.setattr(kafka_destination, "DELIVERY_TIMEOUT_MS", 1_500)


async def everything_is_billed(journal: Journal, analytics: Analytics) -> bool:
    return await billed(analytics) == as_billed(journalled(journal.path))


@asynccontextmanager
async def through_proxy(server: ClickHouseServer, port: int) -> AsyncIterator[Analytics]:
    """An impatient client of a new database."""
    database = server.new_database().rpartition("/")[2]
    async with analytics_at(server.url(database)):
        client = ClickHouse(
            ServerAddress("http", "127.0.0.1", port, server.user, server.password, database),
            answer_timeout_s=ANSWER_TIMEOUT_S,
        )
        try:
            yield client
        finally:
            await client.aclose()


@pytest.mark.usefixtures("impatient")
async def test_outages_of_kafka(
    kafka_server: KafkaServer, cluster: KafkaCluster, topic: str, analytics: Analytics, journal: Journal
) -> None:
    """The journal takes it all in, and brings it on when Kafka is back."""
    proxied = KafkaCluster.from_url(f"kafka://{kafka_server.proxied_bootstrap}")
    async with (
        fault_proxy(kafka_server.proxied_port, kafka_server.proxy_port) as proxy,
        sinking(analytics, cluster, topic),
        relaying(journal, KafkaDestination(proxied, topic, SIGNER)) as relay,
    ):
        await finish(journal, 20)
        await until(lambda: relay.backlog_events == 0)
        for fault in FAULTS:
            failures = relay.failures_total
            await proxy.set(fault)
            await finish(journal, 20)
            await until(lambda failures=failures: relay.failures_total > failures)  # type: ignore[misc]
            assert relay.last_error is not None
            assert relay.backlog_events >= 20
            await proxy.set(Fault.NONE)
            await until(lambda: relay.backlog_events == 0)
            assert relay.last_error is None
        await until(lambda: everything_is_billed(journal, analytics))


async def test_clickhouse_away_in_every_way(clickhouse_server: ClickHouseServer, journal: Journal) -> None:
    """A slow store writes the rows after its client's timeout: the outcome is unknown each time."""
    async with (
        fault_proxy(clickhouse_server.port) as proxy,
        through_proxy(clickhouse_server, proxy.port) as analytics,
        relaying(journal, AnalyticsDestination(analytics, SIGNER)) as relay,
    ):
        await finish(journal, 20)
        await until(lambda: relay.backlog_events == 0)
        for fault in FAULTS:
            failures = relay.failures_total
            await proxy.set(fault)
            await finish(journal, 20)
            await until(lambda failures=failures: relay.failures_total > failures)  # type: ignore[misc]
            await proxy.set(Fault.NONE)
            await until(lambda: relay.backlog_events == 0)
        assert await everything_is_billed(journal, analytics)
        rows = await analytics.query("SELECT count() FROM usage_events FINAL")
        assert rows == [(journal.last_sequence,)]
        window = TimeRange(NOW_MS - HOUR_MS, NOW_MS + HOUR_MS)
        assert await find_drift(analytics, Grain.MINUTE, window) == []


async def test_a_sink_before_a_clickhouse_that_is_away(
    cluster: KafkaCluster,
    topic: str,
    destination: KafkaDestination,
    clickhouse_server: ClickHouseServer,
    journal: Journal,
) -> None:
    async with (
        fault_proxy(clickhouse_server.port) as proxy,
        through_proxy(clickhouse_server, proxy.port) as analytics,
        relaying(journal, destination),
        sinking(analytics, cluster, topic) as (sink,),
    ):
        for fault in (Fault.BLACK_HOLE, Fault.RESET):
            failures = sink.counts.failures_total
            await proxy.set(fault)
            await finish(journal, 20)
            await until(lambda failures=failures: sink.counts.failures_total > failures)  # type: ignore[misc]
            await proxy.set(Fault.NONE)
            await until(lambda: everything_is_billed(journal, analytics))
        await until(lambda: sink.last_error is None)


async def test_a_broker_that_is_killed_under_load(
    own_kafka: KafkaServer, analytics: Analytics, journal: Journal
) -> None:
    own_kafka.create_topic("usage")
    cluster = KafkaCluster.from_url(f"kafka://{own_kafka.bootstrap}")
    destination = KafkaDestination(cluster, "usage", SIGNER)
    async with relaying(journal, destination) as relay, sinking(analytics, cluster, "usage"):
        stopping = asyncio.Event()
        load = asyncio.create_task(_load(journal, stopping))
        await until(lambda: relay.delivered_total > 100)
        await asyncio.to_thread(own_kafka.kill)
        written = journal.last_sequence
        await until(lambda: journal.last_sequence > written + 100)  # answers continue
        await asyncio.to_thread(own_kafka.start)
        delivered = relay.delivered_total
        await until(lambda: relay.delivered_total > delivered + 100)
        stopping.set()
        await load
        await until(lambda: everything_is_billed(journal, analytics))


async def _load(journal: Journal, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        await finish(journal, 5)
        await asyncio.sleep(0.02)


async def test_a_topic_that_is_replayed_twice_to_members_that_come_and_go(
    kafka_server: KafkaServer,
    cluster: KafkaCluster,
    topic: str,
    destination: KafkaDestination,
    analytics: Analytics,
    journal: Journal,
) -> None:
    async with relaying(journal, destination) as relay:
        await finish(journal, 300)
        await until(lambda: relay.backlog_events == 0)
    async with sinking(analytics, cluster, topic):
        await until(lambda: everything_is_billed(journal, analytics))
        messages = await asyncio.to_thread(_messages, kafka_server.bootstrap, topic)
        assert len(messages) == 300
        await asyncio.to_thread(_send_shuffled, kafka_server, topic, messages)
        async with sinking(analytics, cluster, topic, members=2) as sinks:
            while not all(sink.counts.events_total for sink in sinks):  # they join while messages arrive
                await asyncio.to_thread(_send_shuffled, kafka_server, topic, messages)
                await asyncio.sleep(1)
        # A member that is lost while it joins is waited for until its session ends: 45 s, and that may come twice.
        await until(lambda: _all_consumed(kafka_server.bootstrap, topic), within_s=240, every_s=1)
    assert await everything_is_billed(journal, analytics)


Sent = tuple[bytes, list[tuple[str, bytes]]]
"""A message's value and headers."""


def _messages(bootstrap: str, topic: str) -> list[Sent]:
    """All that is in the topic."""
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=1000, group_id=None
    )
    messages = [(each.value, list(each.headers)) for each in consumer]
    consumer.close()
    return messages


def _send_shuffled(server: KafkaServer, topic: str, messages: Sequence[Sent]) -> None:
    """Spread over all partitions."""
    shuffled = random.sample(messages, len(messages))
    send(server, topic, [{"key": random.randbytes(8), "value": body, "headers": kept} for body, kept in shuffled])


async def _all_consumed(bootstrap: str, topic: str) -> bool:
    def lag() -> int:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap, group_id=f"sink-{topic}", enable_auto_commit=False)
        try:
            places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic)]
            ends = consumer.end_offsets(places)
            return sum(ends[place] - (consumer.committed(place) or 0) for place in places)
        finally:
            consumer.close()

    return await asyncio.to_thread(lag) == 0


class LosingAnswers:
    """A store whose every second insert is carried out and not answered."""

    def __init__(self, analytics: Analytics) -> None:
        self._analytics = analytics
        self._inserts = 0

    async def insert(self, *arguments: object) -> None:
        await self._analytics.insert(*arguments)  # type: ignore[arg-type]
        self._inserts += 1
        if self._inserts % 2:
            raise AnalyticsAway("no answer in time")


async def test_fifty_inserts_whose_answer_is_lost(analytics: Analytics, journal: Journal) -> None:
    await finish(journal, 200)
    destination = AnalyticsDestination(LosingAnswers(analytics), SIGNER)  # type: ignore[arg-type]
    relay = Relay(journal, destination, batch_events=4, backoff=Backoff(0.001, 0.002))
    relay.start()
    await until(lambda: relay.backlog_events == 0)
    await relay.aclose(5)
    assert relay.failures_total == 50
    assert await everything_is_billed(journal, analytics)
    assert await analytics.query("SELECT count() FROM usage_events FINAL") == [(200,)]
    assert await analytics.query("SELECT sum(events) FROM usage_by_hour") == [(200,)]
