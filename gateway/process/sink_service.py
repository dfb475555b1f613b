"""The sink as a process: `turnpike sink`."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from gateway.analytics import Analytics, AnalyticsAway, AnalyticsError, migrate, open_analytics
from gateway.analytics.sums import TimeRange
from gateway.config.pepper import load_pepper, pepper_path
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.metrics import SinkCollector
from gateway.metering.reconciliation.gaps import MissingRange, missing_ranges
from gateway.metering.relay.destination import Backoff
from gateway.metering.signature import EventSigner, SignaturePolicy, Verification
from gateway.metering.sink.intake import Intake
from gateway.metering.sink.kafka_source import KafkaSource
from gateway.metering.sink.message_source import MessageSource, Partition, SourceAway
from gateway.metering.sink.sink import Sink

GROUP = "turnpike-sink"
GAPS_EVERY_S = 60.0
LAG_EVERY_S = 5.0
GAPS_WINDOW_MS = 48 * 3_600_000
SETTLED_AFTER_MS = 5 * 60_000
"""Time in transit after which an event's sequence counts as missing."""

_log = structlog.get_logger("turnpike.sink")


class GapWatch:
    """Checks for missing sequences periodically and keeps the last result."""

    def __init__(self, analytics: Analytics) -> None:
        self._analytics = analytics
        self.missing: list[MissingRange] = []

    async def look(self, now_ms: int) -> None:
        """Check once. If the store is unavailable, the last result stays."""
        try:
            found = await missing_ranges(self._analytics, TimeRange(now_ms - GAPS_WINDOW_MS, now_ms - SETTLED_AFTER_MS))
        except AnalyticsError:
            return
        for gap in found:
            if gap not in self.missing:
                _log.error("usage events are missing", source=gap.source, first=gap.first, last=gap.last)
        self.missing = found

    async def run(self) -> None:
        while True:
            await self.look(time.time_ns() // 1_000_000)
            await asyncio.sleep(GAPS_EVERY_S)


class LagWatch:
    """Reads the source's lag periodically and keeps the last result."""

    def __init__(self, source: MessageSource) -> None:
        self._source = source
        self.behind: Mapping[Partition, int] = {}

    async def look(self) -> None:
        """Read once. If the source is unavailable, the last result stays."""
        with suppress(SourceAway):
            self.behind = await self._source.behind()

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LAG_EVERY_S)


async def run_sink(settings: Settings, *, member: str | None = None) -> None:
    """Run the sink until SIGTERM or SIGINT.

    Raises:
        OperatorError: no Kafka or no pepper is configured, or the store is unusable.
    """
    if settings.kafka_url is None:
        raise OperatorError("kafka_url is not set: without Kafka the gateway brings usage to the store by itself")
    policy = _signatures(settings)
    verification = Verification(policy.signer)
    cluster = KafkaCluster.open(settings.kafka_url.get_secret_value())
    analytics = open_analytics(settings.analytics_url.get_secret_value())
    source = KafkaSource(cluster, settings.kafka_topic, group=GROUP, member=member)
    sink = Sink(source, Intake(analytics, verification))
    started, stopping = asyncio.Event(), asyncio.Event()

    def stop() -> None:
        stopping.set()
        sink.stop()

    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop)
    gaps, lag = GapWatch(analytics), LagWatch(source)
    if settings.sink_metrics_port:
        collector = SinkCollector(sink, gaps, lag, started.is_set)
        _serve_metrics(collector, settings.host, settings.sink_metrics_port)

    async def prepare() -> None:
        await migrate(analytics)
        verification.accept_unsigned_until(await policy.unsigned_until_ms(analytics))

    try:
        if await _prepared(prepare, stopping):
            started.set()
            watching = [asyncio.create_task(watch.run()) for watch in (gaps, lag)]
            try:
                _log.info("taking usage from Kafka", topic=settings.kafka_topic, group=GROUP)
                await sink.run()
            finally:
                for watch in watching:
                    watch.cancel()
                await asyncio.wait(watching)
    finally:
        await source.aclose()
        await analytics.aclose()


def _signatures(settings: Settings) -> SignaturePolicy:
    """The signature policy. The sink never creates a pepper: under a new one it would reject every event.

    Raises:
        OperatorError
    """
    if settings.key_pepper is None and not pepper_path(settings).exists():
        raise OperatorError(
            f"there is no pepper in {pepper_path(settings)}: a sink verifies usage under the gateways' pepper, so set "
            "TURNPIKE_KEY_PEPPER to theirs"
        )
    return SignaturePolicy(EventSigner(load_pepper(settings)), settings.usage_accept_unsigned_until)


async def _prepared(prepare: Callable[[], Awaitable[None]], stopping: asyncio.Event) -> bool:
    """Prepare the store, and retry while it is unavailable. False if `stopping` was set."""
    backoff = Backoff(0.5, 10.0)
    while not stopping.is_set():
        try:
            await prepare()
        except AnalyticsAway as error:
            _log.error("the store of usage does not answer", error=str(error))
            try:
                await asyncio.wait_for(stopping.wait(), backoff.next_s())
            except TimeoutError:
                continue
        else:
            return True
    return False


def _serve_metrics(collector: SinkCollector, host: str, port: int) -> None:
    registry = CollectorRegistry()
    registry.register(collector)
    ProcessCollector(registry=registry)
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        raise OperatorError(
            f"metrics cannot be served on {host}:{port}: {error.strerror}. See sink_metrics_port"
        ) from error
