"""Starting, loading and killing, over and over; and at the end, when all is up, what came of it."""

import asyncio
import json
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gateway.analytics import Analytics
from gateway.analytics.sums import TimeRange
from gateway.config.pepper import load_pepper
from gateway.config.settings import Settings
from gateway.metering.journal.journal_file import HOUR_MS, JournalFile
from gateway.metering.reconciliation.reconciliation import reconcile
from gateway.metering.signature import EventSigner, SignaturePolicy
from gateway.tenancy import open_database
from gateway.tenancy.schema import upgrade
from tests.e2e.kill.books import JOURNAL_MS, PRICES, Books, compare, compare_store
from tests.e2e.kill.clients import Keys, Received, load
from tests.e2e.kill.zygote import MODEL, Gateway, Zygote
from tests.support.kafka_server import KafkaServer
from tests.support.usage_requests import analytics_at, journalled, until
from tests.support.writers import TenantWriter

LONGEST_LOAD_S = 0.9
LONGEST_START_S = 0.5
START_SHARE = 0.15
"""Of the cycles: those in which the gateway is killed while it starts, and so while it recovers."""
SINK_EVERY = 4
BROKER_EVERY = 12
TOPIC = "usage"
UP_S = 120.0


@dataclass(slots=True)
class Run:
    """Cycles on one data directory, and so on one journal. `deaths`: how often each was killed."""

    folder: Path
    kafka: KafkaServer
    analytics_url: str
    seed: int
    deaths: dict[str, int] = field(
        default_factory=lambda: {"gateway": 0, "gateway, starting": 0, "sink": 0, "broker": 0}
    )
    received: list[Received] = field(default_factory=list)

    async def cycles(self, count: int, each: Callable[[int], None] = lambda _: None) -> Books:
        """All of it."""
        self.kafka.create_topic(TOPIC, partitions=2)
        settings = Settings(data_dir=self.folder / "data", log_format="json")
        keys, whole_key_id = await _keys(settings)
        zygote = Zygote(self._environment(settings), self.folder / "log")
        try:
            sink = zygote.sink()
            restarting: asyncio.Task[None] | None = None
            for cycle in range(count):
                rng = random.Random(f"{self.seed}-{cycle}")
                if cycle % BROKER_EVERY == BROKER_EVERY // 2:
                    if restarting is not None:
                        await restarting
                    restarting = asyncio.create_task(self._kill_broker(rng.uniform(0, LONGEST_LOAD_S)))
                if cycle % SINK_EVERY == SINK_EVERY // 2:
                    await asyncio.sleep(rng.uniform(0, 0.2))
                    zygote.end(sink)
                    self.deaths["sink"] += 1
                    sink = zygote.sink()
                await self._cycle(zygote, keys, rng)
                each(cycle)
            if restarting is not None:
                await restarting
            return await self._settle(zygote, sink, settings, whole_key_id)
        finally:
            zygote.close()

    async def _cycle(self, zygote: Zygote, keys: Keys, rng: random.Random) -> None:
        gateway = zygote.gateway()
        if rng.random() < START_SHARE:
            await asyncio.sleep(rng.uniform(0, LONGEST_START_S))
            zygote.end(gateway.pid)
            self.deaths["gateway, starting"] += 1
            return
        await listens(gateway)
        loading = asyncio.create_task(load(gateway.port, keys, rng.getrandbits(32)))
        await asyncio.sleep(rng.uniform(0, LONGEST_LOAD_S))
        zygote.end(gateway.pid)
        self.deaths["gateway"] += 1
        self.received += [_without_times(record) for record in await loading]

    async def _kill_broker(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await asyncio.to_thread(self.kafka.kill)
        self.deaths["broker"] += 1
        await asyncio.to_thread(self.kafka.start)

    async def _settle(self, zygote: Zygote, sink: int, settings: Settings, whole_key_id: str) -> Books:
        """A last gateway ends what the others left and delivers it; then everything is stopped in good order."""
        gateway = zygote.gateway()
        await listens(gateway)
        await until(lambda: _delivered(settings.journal_path))
        statuses = [await asyncio.to_thread(zygote.end, gateway.pid, signal.SIGTERM)]
        events = journalled(settings.journal_path)
        books = compare(self.received, events, whole_key_id)
        async with analytics_at(self.analytics_url) as analytics:

            async def stored() -> bool:
                return (await analytics.query("SELECT uniqExact(event_id) FROM usage_events"))[0][0] >= len(events)

            await until(stored)
            statuses.append(await asyncio.to_thread(zygote.end, sink, signal.SIGTERM))
            books.findings += await compare_store(analytics, events)
            books.findings += await _drift(settings, analytics)
        books.findings += [f"a process ended with {status}" for status in statuses if status]
        return books

    def _environment(self, settings: Settings) -> dict[str, str]:
        return {
            "TURNPIKE_DATA_DIR": str(settings.data_dir),
            "TURNPIKE_PRICES": json.dumps({MODEL: PRICES}),
            "TURNPIKE_KAFKA_URL": f"kafka://{self.kafka.bootstrap}",
            "TURNPIKE_KAFKA_TOPIC": TOPIC,
            "TURNPIKE_ANALYTICS_URL": self.analytics_url,
            "TURNPIKE_JOURNAL_INTERVAL_MS": str(JOURNAL_MS),
            "TURNPIKE_LOG_FORMAT": "json",
            "TURNPIKE_SINK_METRICS_PORT": "0",
        }


async def _keys(settings: Settings) -> tuple[Keys, str]:
    """Of a new tenant; and the public id of the one for whole answers."""
    settings.data_dir.mkdir(parents=True)
    await upgrade(settings.database_url.get_secret_value())
    database = open_database(settings.database_url.get_secret_value())
    try:
        store = TenantWriter(database, load_pepper(settings))
        await store.create_tenant("acme", "standard")
        streamed, whole = [await store.create_key("acme", name) for name in ("streamed", "whole")]
    finally:
        await database.dispose()
    return Keys(streamed.plaintext, whole.plaintext), whole.record.public_id


async def listens(gateway: Gateway) -> None:
    deadline = time.monotonic() + UP_S
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        except ConnectionError:
            assert time.monotonic() < deadline, "the gateway does not start"
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return


def _delivered(journal: Path) -> bool:
    file = JournalFile(journal, read_only=True)
    try:
        return not file.open_requests() and file.relayed_sequence() == file.last_sequence()
    finally:
        file.close()


async def _drift(settings: Settings, analytics: Analytics) -> list[str]:
    now_ms = time.time_ns() // 1_000_000
    window = TimeRange(now_ms - 24 * HOUR_MS, now_ms + HOUR_MS)
    signatures = SignaturePolicy(EventSigner(load_pepper(settings)))
    found = await reconcile(settings.journal_path, analytics, window, signatures, now_ms=window.end_ms)
    return [f"reconciliation: {found}"] if found.drift else []


def _without_times(record: Received) -> Received:
    """Of what ended, only how much it was is looked at: a long run need not hold more."""
    if record.ended:
        record.arrivals_s = [0.0] * record.tokens
    return record
