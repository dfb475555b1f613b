"""The program of one run: gateways with engines of their own, the stores between them, and the way a process ends."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import _base as futures
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import aiosqlite.core
import structlog
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.applications import Starlette

from engine.config import EngineConfig
from engine.engine import Engine
from engine.runtime import adapter_loading, expected_queue, output_stream
from engine.runtime import core as engine_core
from engine.runtime import thread as engine_thread
from engine.runtime import wait_prediction as engine_wait_prediction
from engine.runtime import watchdog as engine_watchdog
from engine.runtime.core import EngineCore
from engine.runtime.thread import EngineThread
from engine.scheduling.scheduler import Scheduler
from engine.workers import frames, server, supervisor, worker_requests
from gateway.admission.redis_store import RedisStore
from gateway.app import create_app
from gateway.config.adapters import StatedAdapters
from gateway.config.files import StatedBatches
from gateway.config.settings import Settings
from gateway.generation import text_pool
from gateway.generation.services import Services
from gateway.metering import worker as worker_module
from gateway.metering.journal import journal as journal_module
from gateway.metering.relay.analytics_destination import AnalyticsDestination
from gateway.metering.signature import EventSigner, Verification
from gateway.metering.sink.intake import Intake
from gateway.metering.sink.sink import Sink
from gateway.process import opening
from gateway.process.server import CUT_S, FLUSH_S
from gateway.refusals.refusal_log import RefusalLog
from gateway.routing.score import ComplexityScore
from gateway.sessions.redis_store import RedisSessionStore
from gateway.tenancy import open_database
from tests.whole import models
from tests.whole.adapters import AdapterReads, Registry, write_files
from tests.whole.clock import VirtualClock
from tests.whole.database import Database
from tests.whole.disk import Disk
from tests.whole.executor import SimulatedDevice
from tests.whole.loop import VirtualLoop
from tests.whole.redis import RedisMachine
from tests.whole.refusals import FLUSH_S as FLUSH_REFUSALS_S
from tests.whole.refusals import Refusals
from tests.whole.scenario import Config
from tests.whole.submitted import Submitted
from tests.whole.tenants import PEPPER, PRICES, copy_database, template
from tests.whole.upstream_server import FAR, URL, UpstreamServer
from tests.whole.usage import AnalyticsLink, MemoryAnalytics, Topic, TopicDestination, TopicSource
from tests.whole.worker_process import WorkerProcess
from tests.whole.workers import SeenEngine, Workers

THREADED_MODULES = (
    engine_core,
    engine_thread,
    expected_queue,
    engine_watchdog,
    engine_wait_prediction,
    adapter_loading,
    journal_module,
    worker_module,
    text_pool,
    aiosqlite.core,
    futures,
    supervisor,
    frames,
    server,
    worker_requests,
)
"""All that have threads and are part of a run."""

SALT_KEY = b"salt" * 8


@dataclass
class Gateway:
    """One process: from its start to its end, in order or not. `epoch` counts its starts."""

    index: int
    epoch: int
    folder: Path
    settings: Settings
    engine: Engine | SeenEngine
    devices: dict[str, SimulatedDevice]
    services: Services
    app: Starlette
    database: AsyncEngine
    stack: AsyncExitStack
    links: list[Any]
    """Its ways to other machines."""
    tasks: set["asyncio.Task[Any]"] = field(default_factory=set)
    """Of requests that it serves."""
    exchanges: set[Any] = field(default_factory=set)
    """With clients that are connected to it."""
    open: bool = True

    @property
    def core(self) -> EngineCore | None:
        """That of the engine; None while it has no process."""
        if isinstance(self.engine, Engine):
            return self.engine.core
        process = self.engine.host.current
        return None if process is None else process.core

    @property
    def schedulers(self) -> dict[str, Scheduler]:
        core = self.core
        return {} if core is None else {name: runtime.scheduler for name, runtime in core._runtimes.items()}


class World:
    """All of it. Made on the loop that it runs on."""

    def __init__(self, config: Config, folder: Path, clock: VirtualClock, loop: VirtualLoop, random: Random) -> None:
        self.config = config
        self.folder = folder
        self.clock = clock
        self.loop = loop
        self.random = random
        self.redis = RedisMachine(random)
        self.topic = Topic(random)
        self.analytics = MemoryAnalytics(random)
        self.disk = Disk(random)
        self.database = Database(random)
        self.gateways: list[Gateway] = []
        self.lost_holds = False
        """A process died with holds, or stopped while it could release none: what is left of them expires."""
        self.disk_failed_at_stop = False
        self.refusals = Refusals()
        self.remains: list[asyncio.Task[None]] = []
        self.sink_task: asyncio.Task[None] | None = None
        self._sink: Sink | None = None
        self.database_path = copy_database(folder)
        self.adapters = Registry(list(template().lives))
        self.adapter_reads = AdapterReads(Random("reads"), config.adapter_ms / 1000, config.adapter_failing)
        self.workers = Workers(config, clock, loop, random)
        self.upstream = UpstreamServer(config, Random("upstream"))
        self.submitted = Submitted()
        self.computed: dict[str, set[str]] = {}
        """By request: the digests of the adapters with which it was computed; empty: none."""
        if config.adapter_slots:
            write_files(_adapters_folder(folder))

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The simulated surroundings are in the places of real ones."""
        with (
            self.database.installed(),
            self.disk.installed(),
            self.adapter_reads.installed(),
            self.workers.installed(),
            self.upstream.installed(),
        ):
            yield

    async def start(self) -> None:
        for index in range(self.config.gateways):
            self.gateways.append(await self._start_gateway(index, 0, None))
        if self.config.topic:
            intake = Intake(self.analytics, Verification(EventSigner(PEPPER)))
            self._sink = Sink(TopicSource(self.topic), intake, linger_ms=50)
            self.sink_task = asyncio.create_task(self._sink.run(), name="sink")

    async def restart(self, index: int) -> None:
        """SIGTERM, and a new process on the same disk."""
        old = self.gateways[index]
        self.disk_failed_at_stop |= self.disk.fails or self.disk.sync_fails  # it may recover before the stop ends
        await self.stop(old)
        self.lost_holds |= not self.redis.accepts  # what is unsettled then expires
        self.disk_failed_at_stop |= self.disk.fails or self.disk.sync_fails
        self.gateways[index] = await self._start_gateway(index, old.epoch + 1, old.settings.journal_path.read_bytes())

    async def crash(self, index: int) -> None:
        """kill -9: what was on the disk at this moment is all that the next process finds."""
        old = self.gateways[index]
        left = self.disk.after_crash(old.settings.journal_path)
        self.refusals.end_of(old.services.refusals)
        self.lost_holds = True
        # The old process can reach nothing any more. What it still does, in ending, has no effect on anyone.
        old.open = False
        for link in old.links:
            link.cut = True
        for exchange in list(old.exchanges):
            exchange.break_off()
        for task in list(old.tasks):
            task.cancel()
        self.remains.append(asyncio.create_task(self._bury(old), name="killed process"))
        self.gateways[index] = await self._start_gateway(index, old.epoch + 1, left)

    async def _bury(self, gateway: Gateway) -> None:
        if gateway.tasks:
            await asyncio.wait(gateway.tasks)
        await gateway.stack.aclose()

    async def stop(self, gateway: Gateway) -> None:
        """As `Server.shutdown`: new work is refused, what runs may end, and what the deadline finds is cut."""
        gateway.open = False
        gateway.services.drain.begin()
        if gateway.tasks:
            await asyncio.wait(gateway.tasks, timeout=10.0)
        for exchange in gateway.exchanges:
            exchange.at_deadline = True
        for task in list(gateway.tasks):
            task.cancel()
        if gateway.tasks:
            await asyncio.wait(gateway.tasks, timeout=FLUSH_S)
        for exchange in list(gateway.exchanges):
            exchange.cut_if_unread()
        if gateway.tasks:
            await asyncio.wait(gateway.tasks, timeout=CUT_S - FLUSH_S)
        assert not gateway.tasks, f"{len(gateway.tasks)} requests did not end at the deadline"
        await gateway.stack.aclose()
        unstored = gateway.services.refusals.unstored_requests
        assert not unstored or self.analytics.was_away, f"a gateway stops with {unstored} refusals that are not stored"
        self.refusals.end_of(gateway.services.refusals)

    async def aclose(self) -> None:
        for gateway in self.gateways:
            await self.stop(gateway)
        if self.remains:
            await asyncio.wait(self.remains)
        if self._sink is not None and self.sink_task is not None:
            self._sink.stop()
            await self.sink_task
        await self.workers.aclose()
        await asyncio.sleep(1.0)  # threads without a join end by themselves

    async def _start_gateway(self, index: int, epoch: int, journal: bytes | None) -> Gateway:
        folder = self.folder / f"gateway-{index}-{epoch}"
        folder.mkdir()
        settings = settings_of(self.config, folder, self.database_path)
        if journal is not None:
            settings.journal_path.parent.mkdir(parents=True, exist_ok=True)
            settings.journal_path.write_bytes(journal)
        devices: dict[str, SimulatedDevice] = {}
        engine_ = await self._engine(settings, folder, devices)
        self.submitted.watch(engine_)
        database = open_database(f"sqlite+aiosqlite:///{self.database_path}")
        stack = AsyncExitStack()
        links: list[Any] = []
        with self._stores(links), self.disk.well():
            async with self.database.writing():
                services, admin = await opening.open_services(settings, engine_, database, PEPPER)
        links += [each.connection._client._transport for each in services.upstreams]
        stack.push_async_callback(database.dispose)
        app = create_app(settings, services, admin)
        await stack.enter_async_context(app.router.lifespan_context(app))
        return Gateway(index, epoch, folder, settings, engine_, devices, services, app, database, stack, links)

    async def _engine(
        self, settings: Settings, folder: Path, devices: dict[str, SimulatedDevice]
    ) -> Engine | SeenEngine:
        """`devices` gets those that the engine computes with."""

        def load(process: WorkerProcess | None = None) -> Engine:
            loaded, new = models.load(self.config, settings, self.clock, self.computed)
            for name, device in new.items():
                if (former := devices.get(name)) is not None:
                    device.succeed(former)
            devices.update(new)
            if process is not None:
                loaded = self.workers.with_grammars(loaded, process)
            return Engine(
                loaded,
                EngineThread(),
                SALT_KEY,
                {},
                step_timeout_seconds=settings.step_timeout_s,
                adapter_cache_bytes=self.config.adapter_cache,
            )

        if not self.config.workers:
            return load()
        host = self.workers.host(folder, load)
        config = EngineConfig(salt_key=SALT_KEY, step_timeout_seconds=settings.step_timeout_s)
        paths = {name: folder / name for name in settings.models}
        # On a thread, as it waits for the process.
        engine_: SeenEngine = await self.loop.run_in_executor(None, lambda: SeenEngine(paths, config, host))
        return engine_

    @contextmanager
    def _stores(self, links: list[Any]) -> Iterator[None]:
        """In place of servers: the simulated ones. `links` gets the process's ways to them."""

        def linked(link: Any) -> Any:
            links.append(link)
            return link

        def destination(settings: Settings, analytics: Any, signer: EventSigner) -> Any:
            if self.config.topic:
                return linked(TopicDestination(self.topic, signer))
            return AnalyticsDestination(analytics, signer)

        with (
            patch.object(opening, "open_usage_store", lambda settings: linked(AnalyticsLink(self.analytics))),
            patch.object(opening, "_destination", destination),
            patch.object(opening, "open_books", lambda *_: None),
            patch.object(opening, "RefusalLog", partial(RefusalLog, flush_s=FLUSH_REFUSALS_S)),
            patch.object(
                RedisStore,
                "open",
                classmethod(lambda cls, url, replica: cls(linked(self.redis.client()), None, replica)),
            ),
            patch.object(RedisSessionStore, "open", classmethod(lambda cls, url: cls(linked(self.redis.client())))),
        ):
            yield


def settings_of(config: Config, folder: Path, database: Path) -> Settings:
    names = ["large", "small"] if config.small else ["large"]
    upstreams = {FAR: _upstream(config)} if config.upstream else {}
    return Settings(
        data_dir=folder,
        database_url=f"sqlite:///{database}",
        models={name: folder / name for name in names},
        batches=StatedBatches(concurrency=0),
        small_models=dict.fromkeys(["large", *upstreams], "small") if config.small else {},
        upstreams=upstreams,
        prices={name: PRICES[name] for name in (*names, *upstreams)},
        embeddings={"large": "mean"},
        redis_url="redis://simulated:6379/0" if config.redis else None,
        max_wait_s=config.max_wait_s,
        saturated_queue=config.saturated_queue,
        journal_min_free=2**20,
        session_wait_s=2,
        step_timeout_s=60,
        adapters=StatedAdapters(folder=_adapters_folder(folder.parent)),
    )


def _upstream(config: Config) -> dict[str, Any]:
    return {
        "url": URL,
        "max_model_len": config.window,
        "max_concurrent": config.upstream_room,
        "first_byte_timeout_s": 5,
        "read_timeout_s": 3,
        "probe_every_s": 5,
    }


def _adapters_folder(folder: Path) -> Path:
    """Of all gateways of a run, whose folder it is in."""
    return folder / "adapters"


@contextmanager
def quiet() -> Iterator[None]:
    """No log lines, no priorities of this process."""
    structlog.configure(
        processors=[lambda *_: ""], logger_factory=structlog.ReturnLoggerFactory(), cache_logger_on_first_use=False
    )
    with patch.object(engine_thread, "lower_priority", lambda: None):
        yield


@contextmanager
def read_once() -> Iterator[None]:
    """The routing weights are parsed once a process, and not once a simulated start: a tenth of a short run."""
    with patch.object(ComplexityScore, "load", _score):
        yield


_score = cache(ComplexityScore.load)


@contextmanager
def unread(most: int) -> Iterator[None]:
    """`most`: the bound on unread deltas of a choice."""
    with (
        patch.object(output_stream, "MAX_UNREAD_DELTAS", most),
        patch.object(output_stream, "FEW_UNREAD_DELTAS", most // 4),
    ):
        yield
