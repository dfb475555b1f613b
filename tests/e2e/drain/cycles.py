"""Starting, loading and ending, over and over; and at the end, what came of it."""

import asyncio
import json
import random
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import redis

from gateway.app import RELAY_DEADLINE_S
from gateway.config.pepper import load_pepper
from gateway.config.settings import Settings
from gateway.metering.journal.journal_file import JournalFile
from gateway.process.server import CUT_S
from gateway.tenancy import open_database
from gateway.tenancy.limits import ScopeKind
from gateway.tenancy.schema import upgrade
from tests.e2e.drain.books import Books, compare
from tests.e2e.drain.clients import MODEL, Crowd, Seen
from tests.e2e.kill.books import compare_store
from tests.e2e.kill.cycles import listens
from tests.e2e.kill.zygote import Zygote
from tests.support.usage_requests import analytics_at, journalled, until
from tests.support.writers import LimitWriter, TenantWriter

LONGEST_LOAD_S = 2.5
LONGEST_DEADLINE_S = 2.0
SLACK_S = 20.0
"""How much longer than its bounds a shutdown may take, on a machine that has other things to do."""


@dataclass(slots=True)
class Run:
    """Cycles on one data directory, and so on one journal. `exits_s`: how long each took to end, less its deadline."""

    folder: Path
    checkpoint: Path
    redis_url: str
    analytics_url: str
    seed: int
    seen: list[Seen] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    exits_s: list[float] = field(default_factory=list)

    async def cycles(self, count: int, each: Callable[[int], None] = lambda _: None) -> Books:
        """All of it."""
        settings = Settings(data_dir=self.folder / "data", log_format="json")
        keys = await _keys(settings)
        environment = self._environment(settings)
        with closing(Zygote(environment, self.folder / "log", real_engine=True)) as zygote:
            for cycle in range(count):
                await self._cycle(zygote, keys, random.Random(f"{self.seed}-{cycle}"))
                self._look_at_what_is_left(settings, cycle)
                each(cycle)
            await self._deliver(zygote, settings)
        events = journalled(settings.journal_path)
        books = compare(self.seen, events)
        books.findings += self.findings
        async with analytics_at(self.analytics_url) as analytics:
            books.findings += await compare_store(analytics, events)
        return books

    async def _cycle(self, zygote: Zygote, keys: list[str], rng: random.Random) -> None:
        deadline_s = rng.choice((0.0, rng.uniform(0, LONGEST_DEADLINE_S), LONGEST_DEADLINE_S))
        delay_s = rng.choice((0.0, rng.uniform(0, deadline_s)))
        gateway = zygote.gateway(shutdown_deadline_s=deadline_s, drain_delay_s=delay_s)
        await listens(gateway)
        crowd = Crowd(gateway.port, keys)
        asking = asyncio.create_task(crowd.ask(rng.getrandbits(32)))
        await asyncio.sleep(rng.uniform(0, LONGEST_LOAD_S))
        crowd.signalled_s = began_s = time.monotonic()
        status = await asyncio.to_thread(zygote.end, gateway.pid, signal.SIGTERM)
        over_s = time.monotonic() - began_s - deadline_s
        self.exits_s.append(over_s)
        self.seen += await asking
        if status != 0:
            self.findings.append(f"it ended with {status}")
        if over_s > CUT_S + RELAY_DEADLINE_S + SLACK_S:
            self.findings.append(f"it took {over_s:.1f} s over its deadline to end")

    def _look_at_what_is_left(self, settings: Settings, cycle: int) -> None:
        with closing(JournalFile(settings.journal_path, read_only=True)) as file:
            self.findings += [f"cycle {cycle}: {each} is open in the journal" for each in file.open_requests()]
        with closing(redis.Redis.from_url(self.redis_url)) as store:
            for key in store.scan_iter():
                kind = store.type(key)
                if kind == b"zset" and not key.startswith(b"ctx-used:"):  # sessions that are kept, and no holds
                    self.findings.append(f"cycle {cycle}: there are holds left in {key!r}")
                if kind == b"hash" and store.hget(key, "owner"):
                    self.findings.append(f"cycle {cycle}: there is a turn left in {key!r}")

    async def _deliver(self, zygote: Zygote, settings: Settings) -> None:
        """A last gateway brings what is left to ClickHouse."""
        gateway = zygote.gateway()
        await listens(gateway)
        with closing(JournalFile(settings.journal_path, read_only=True)) as file:
            await until(lambda: file.relayed_sequence() == file.last_sequence())
        status = await asyncio.to_thread(zygote.end, gateway.pid, signal.SIGTERM)
        self.findings += [f"the last one ended with {status}"] * bool(status)

    def _environment(self, settings: Settings) -> dict[str, str]:
        return {
            "TURNPIKE_DATA_DIR": str(settings.data_dir),
            "TURNPIKE_MODELS": json.dumps({MODEL: str(self.checkpoint)}),
            "TURNPIKE_PRICES": json.dumps({MODEL: ("0.1", "0.05", "0.4")}),
            "TURNPIKE_REDIS_URL": self.redis_url,
            "TURNPIKE_ANALYTICS_URL": self.analytics_url,
            "TURNPIKE_DTYPE": "float32",
            "TURNPIKE_THREADS": "1",
            "TURNPIKE_KV_CACHE_BYTES": "16MiB",
            "TURNPIKE_LOG_FORMAT": "json",
        }


async def _keys(settings: Settings) -> list[str]:
    """Of two tenants with limits, the second of which comes up against its own."""
    settings.data_dir.mkdir(parents=True)
    await upgrade(settings.database_url.get_secret_value())
    database = open_database(settings.database_url.get_secret_value())
    try:
        store = TenantWriter(database, load_pepper(settings))
        for name, tier, concurrent in (("acme", "premium", 100), ("globex", "standard", 4)):
            await store.create_tenant(name, tier)
            await LimitWriter(database).set_limits(name, ScopeKind.TENANT, "", {"concurrent": concurrent})
        return [(await store.create_key(name, "load")).plaintext for name in ("acme", "globex")]
    finally:
        await database.dispose()
