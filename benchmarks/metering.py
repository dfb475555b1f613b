"""Cost of metering: `python -m benchmarks.metering [journal] [flow] [outage]`, all of them where none is named.

journal: a stream's wait at its end, and the disk's own time for a write and an fsync, in the same run.
flow: events from the journal through Kafka and a sink to ClickHouse's engine, each in a process of its own, as fast as
it goes. outage: ten minutes of 200 events a second, which Kafka missed, while a further 200 a second arrive.
"""

import asyncio
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import uvloop
from kafka import KafkaConsumer, KafkaProducer

from benchmarks.disk import fsync_ms
from gateway.analytics import Analytics, migrate, open_analytics
from gateway.billing.prices import Price
from gateway.common.ids import new_event_id
from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.journal import Journal
from gateway.metering.journal.journal_file import JournalFile
from gateway.metering.journal.usage_context import Progress, UsageContext, Work, event_of
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.relay.kafka_destination import KafkaDestination
from gateway.metering.relay.relay import Relay
from gateway.metering.signature import EventSigner, Verification
from gateway.metering.sink.intake import Intake
from gateway.metering.sink.kafka_source import KafkaSource
from gateway.metering.sink.sink import Sink
from tests.support.clickhouse_server import running_clickhouse
from tests.support.kafka_server import running_kafka
from tests.support.servers import ServerMissing

STREAMS = (1, 16, 64)
SIGNER = EventSigner(b"a pepper of the benchmarks, 32 bytes")
ENDS_EACH = 200
FLOW_EVENTS = 60_000
OUTAGE_EVENTS = 120_000
ALONE_EVENTS = 30_000
ARRIVING_PER_S = 200
TENANTS = 50
PROMISED_PER_S = 5_000
PROMISED_CATCH_UP_S = 120
TOPIC = "usage"


def a_usage_context(n: int) -> UsageContext:
    now_ms = time.time_ns() // 1_000_000
    return UsageContext(
        event_id=new_event_id(now_ms),
        request_id=f"req_{n:032x}",
        tenant_id=f"tenant-{n % TENANTS}",
        key_id=f"key-{n % TENANTS}",
        tier="standard",
        tier_served="standard",
        requested_model="smollm2",
        routed_model="smollm2",
        served_model="smollm2",
        model_version="sha256:0123456789abcdef",
        route_reason="explicit",
        price=Price("2026-11", 150, 75, 600),
        opened_ms=now_ms,
    )


def end_of(usage_context: UsageContext) -> UsageEvent:
    work = Work(queue_ms=3, engine_ns=123_456_789)
    return event_of(usage_context, Progress(512, 128, 64, 41), work, Ending.STOP, 200, usage_context.opened_ms + 900)


def line(what: str, took_ms: Sequence[float], note: str = "") -> str:
    p50, p99 = statistics.median(took_ms), statistics.quantiles(took_ms, n=100)[98]
    return f"  {what:28} p50 {p50:7.2f} ms  p99 {p99:7.2f} ms  {note}".rstrip()


# The journal


async def stream(journal: Journal, first: int, took_ms: list[float]) -> None:
    for n in range(ENDS_EACH):
        usage_context = a_usage_context(first + n)
        journal.begin(usage_context)
        event = end_of(usage_context)
        started = time.perf_counter()
        await journal.finish(event, event)
        took_ms.append((time.perf_counter() - started) * 1e3)


async def measure_journal(folder: Path) -> None:
    disk = fsync_ms(folder)
    print("the journal: from the end of an answer to the disk")
    print(line("4 KiB and fsync", disk))
    for streams in STREAMS:
        journal = Journal(folder / f"{streams}.db")
        took: list[float] = []
        await asyncio.gather(*(stream(journal, each * ENDS_EACH, took) for each in range(streams)))
        await journal.aclose()
        ratio = statistics.median(took) / statistics.median(disk)
        print(line(f"finish, {streams} streams", took, f"p50 {ratio:.1f} of an fsync"))


# From the journal to ClickHouse


def fill(path: Path, events: int) -> None:
    """A journal with a backlog, written as the journal would, in few commits."""
    file = JournalFile(path)
    for first in range(1, events + 1, 5_000):
        numbers = range(first, min(first + 5_000, events + 1))
        file.begin()
        file.append(first, [replace(end_of(a_usage_context(n)), source=file.source, sequence=n) for n in numbers])
        file.commit()
    file.close()


def run_gateway(path: Path, kafka_url: str, arriving_per_s: int) -> None:
    """A gateway as far as metering goes, until SIGTERM: requests that end at a steady rate, and the relay."""

    async def main() -> None:
        stopping = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
        journal = Journal(path)
        relay = Relay(journal, KafkaDestination(KafkaCluster.from_url(kafka_url), TOPIC, SIGNER))
        relay.start()
        started, ended = time.monotonic(), 0
        while not stopping.is_set():
            due = int((time.monotonic() - started) * arriving_per_s) - ended
            for _ in range(due):
                ended += 1
                usage_context = a_usage_context(10_000_000 + ended)
                journal.begin(usage_context)
                journal.finish_later(end_of(usage_context))
            await asyncio.sleep(0.02)
        await relay.aclose(30)
        await journal.aclose()

    uvloop.run(main())


def run_sink(kafka_url: str, store_url: str) -> None:
    async def main() -> None:
        analytics = open_analytics(store_url)
        source = KafkaSource(KafkaCluster.from_url(kafka_url), TOPIC, group="bench")
        sink = Sink(source, Intake(analytics, Verification(SIGNER)))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, sink.stop)
        await sink.run()
        await analytics.aclose()

    uvloop.run(main())


async def stored(analytics: Analytics) -> int:
    [(events,)] = await analytics.query("SELECT count() FROM usage_events")
    return int(events)


def journalled(path: Path) -> int:
    file = JournalFile(path, read_only=True)
    try:
        return file.last_sequence()
    finally:
        file.close()


async def arrive(path: Path, store_url: str, kafka_url: str, arriving_per_s: int) -> float:
    """Seconds from the first stored event until all that the journal holds are stored; checks that each is there once
    and costs what it costs."""
    analytics = open_analytics(store_url)
    await migrate(analytics)
    context = multiprocessing.get_context("spawn")
    sink = context.Process(target=run_sink, args=(kafka_url, store_url))
    gateway = context.Process(target=run_gateway, args=(path, kafka_url, arriving_per_s))
    sink.start()
    gateway.start()

    async def behind() -> int:
        assert sink.is_alive(), "the sink has ended"
        return journalled(path) - await stored(analytics)

    while not await stored(analytics):
        await asyncio.sleep(0.05)
    started = time.monotonic()
    while await behind() > 2 * arriving_per_s:
        await asyncio.sleep(0.1)
    took_s = time.monotonic() - started
    gateway.terminate()
    gateway.join()
    while await behind():
        await asyncio.sleep(0.1)
    sink.terminate()
    sink.join()
    [(events, cost)] = await analytics.query("SELECT count(), sum(cost_nanodollars) FROM usage_events FINAL")
    assert (events, cost) == (journalled(path), events * end_of(a_usage_context(0)).cost_nanodollars)
    await analytics.aclose()
    return took_s


def kafka_alone(bootstrap: str, events: int) -> tuple[float, float]:
    """Messages a second that its client sends, and takes, in this process, when it does nothing else."""
    body = replace(end_of(a_usage_context(0)), source=str(new_event_id()), sequence=1).to_json()
    producer = KafkaProducer(bootstrap_servers=bootstrap, batch_size=256 * 1024, linger_ms=5)
    producer.partitions_for("alone")
    started = time.monotonic()
    for n in range(events):
        producer.send("alone", key=str(n % TENANTS).encode(), value=body)
    producer.flush()
    sent_s = time.monotonic() - started
    producer.close()
    consumer = KafkaConsumer("alone", bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None)
    taken, started = 0, time.monotonic()
    while taken < events:
        taken += sum(map(len, consumer.poll(timeout_ms=100, max_records=2_000).values()))
    taken_s = time.monotonic() - started
    consumer.close()
    return events / sent_s, events / taken_s


def through_kafka(folder: Path, events: int, arriving_per_s: int) -> tuple[float, tuple[float, float]]:
    path = folder / "journal.db"
    fill(path, events)
    with running_kafka() as kafka, running_clickhouse() as clickhouse:
        for topic in (TOPIC, "alone"):
            kafka.create_topic(topic)
        url = f"kafka://{kafka.bootstrap}"
        took_s = asyncio.run(arrive(path, clickhouse.new_database(), url, arriving_per_s))
        return took_s, kafka_alone(kafka.bootstrap, ALONE_EVENTS)


def measure_flow(folder: Path) -> None:
    took_s, (sends, takes) = through_kafka(folder, FLOW_EVENTS, 0)
    rate = FLOW_EVENTS / took_s
    print(f"journal, Kafka, sink, ClickHouse: {FLOW_EVENTS} events")
    print(f"  {rate:,.0f} events/s  (at least {PROMISED_PER_S:,})")
    slower = min(sends, takes)
    print(
        f"  Kafka's client alone: sends {sends:,.0f}/s, takes {takes:,.0f}/s; ours is {rate / slower:.2f} of the slower"
    )


def measure_outage(folder: Path) -> None:
    took_s, _ = through_kafka(folder, OUTAGE_EVENTS, ARRIVING_PER_S)
    outage_s = OUTAGE_EVENTS / ARRIVING_PER_S
    print(f"after an outage of {outage_s:.0f} s: {OUTAGE_EVENTS} events of backlog, {ARRIVING_PER_S}/s arriving")
    print(f"  caught up in {took_s:.1f} s, {outage_s / took_s:.1f} times as fast  (at most {PROMISED_CATCH_UP_S} s)")


def main() -> None:
    parts: dict[str, Callable[[Path], None]] = {
        "journal": lambda folder: uvloop.run(measure_journal(folder)),
        "flow": measure_flow,
        "outage": measure_outage,
    }
    for name in sys.argv[1:] or parts:
        with tempfile.TemporaryDirectory(prefix="turnpike-metering-", dir=os.environ.get("TMPDIR")) as folder:
            try:
                parts[name](Path(folder))
            except ServerMissing as missing:
                print(missing)


if __name__ == "__main__":
    main()
