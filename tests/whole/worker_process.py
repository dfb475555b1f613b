"""An engine's process in a simulation: what `engine.workers.process` does, and the ways in which it ends."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from random import Random
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any

from engine.engine import Engine
from engine.grammar.spec import GrammarSpec
from engine.grammar.tenant_queues import QueueFull
from engine.request import TokenDelta
from engine.runtime.core import EngineCore
from engine.workers.frames import ConnectionEnded, FrameReader, FrameWriter, read_first
from engine.workers.messages import (
    Abort,
    Deltas,
    Failed,
    FromWorker,
    Loading,
    Pause,
    Resume,
    Start,
    Submit,
    ToWorker,
    decode_from_worker,
    decode_to_worker,
    encode,
)
from engine.workers.server import WorkerServer, ready_message
from tests.whole import threads
from tests.whole.sockets import Socket

if TYPE_CHECKING:
    from tests.whole.workers import WorkerHost

REFUSED_GRAMMARS = 0.1
"""Share of the grammars that find their tenant's queue full."""


class WorkerProcess:
    """One process, from its start to its end: `kill` may come at any moment, from any thread."""

    def __init__(self, connection: Socket, host_of: Callable[[Start], "WorkerHost"], loop: Any, random: Random) -> None:
        self.pid = connection.fileno()
        self.host: WorkerHost | None = None
        self.engine: Engine | None = None
        self.server: SeenServer | None = None
        self.is_ready = self.is_over = False
        self._connection = connection
        self._writer: SeenWriter | None = None
        self._host_of = host_of
        self._loop = loop
        self._random = random
        self._over = threads.Event()
        self.task: asyncio.Task[None] | None = None
        loop.call_soon(self._begin)

    @property
    def core(self) -> EngineCore | None:
        """Of an engine that is loaded, while the process lives."""
        return None if self.engine is None or self.is_over or not self.is_ready else self.engine.core

    def wait(self, timeout: float | None = None) -> int:
        if not self._over.wait(timeout):
            raise TimeoutExpired("worker", timeout or 0.0)
        return 0

    def kill(self) -> None:
        """kill -9: some of what it has sent is lost, and what was sent to it. What it still does has no effect."""
        if self.is_over:
            return
        self._end()
        self._connection.outgoing.cut(self._random.choice((0.0, 1.0, 1.0, self._random.random())))
        self._connection.incoming.cut(0.0)
        if self.task is not None:
            self.task.cancel()

    def on_seen(self, names: Iterator[str]) -> None:
        """It has sent or handled a message: at times its end comes upon that."""
        if self.host is not None and not self.is_over:
            self.host.on_seen(self, names)

    def _begin(self) -> None:
        if not self.is_over:
            self.task = self._loop.create_task(self._live(), name="worker process")

    def _end(self) -> None:
        self.is_over = True
        if self.host is not None:
            self.host.on_ended(self)
        self._over.set()

    async def _live(self) -> None:
        try:
            await self._run()
        except (asyncio.CancelledError, ConnectionEnded):
            pass
        finally:
            await self._bury()

    async def _run(self) -> None:
        reader = FrameReader()
        payload = (await self._loop.run_in_executor(None, lambda: read_first(self._connection, reader)))[0]  # type: ignore[arg-type]
        start = decode_to_worker(payload)
        assert isinstance(start, Start), "the first message starts it"
        self.host = host = self._host_of(start)
        self._writer = SeenWriter(self._connection, self)
        ending, load_s = host.next_start(self)
        for part in range(1, 4):
            self._writer.send(encode(Loading("large", part, 4)))
            await asyncio.sleep(load_s / 4)
            if part == 2 and ending == "fails":
                self._writer.send(encode(Failed("InsufficientMemory", "there is no room")))
                return
            if part == 2 and ending == "dies":
                self.kill()
        self.engine = engine = host.load(self)
        engine.start()
        self.server = SeenServer(self, engine, self._writer)
        self.is_ready = True
        self._writer.send(encode(ready_message(engine)))
        await self.server.serve(self._connection)  # type: ignore[arg-type]

    async def _bury(self) -> None:
        """It has ended: its threads end, too."""
        if not self.is_over:
            self._end()
            self._connection.shutdown(2)
        if self._writer is not None:
            self._writer.close()
        for task in list(self.server._preparing.values()) if self.server is not None else ():
            task.cancel()
        if (engine := self.engine) is not None:
            await self._loop.run_in_executor(None, lambda: _close(engine))


def _close(engine: Engine) -> None:
    engine.close()
    engine.core._thread._thread.join()  # it may hang in a step


class SeenWriter(FrameWriter):
    """Says of each message that it was sent."""

    def __init__(self, connection: Socket, process: WorkerProcess) -> None:
        super().__init__(connection)  # type: ignore[arg-type]
        self._process = process

    def send(self, payload: bytes) -> bool:
        is_open = super().send(payload)
        if self._process.host is not None and self._process.host.is_armed:
            self._process.on_seen(_names_of_sent(decode_from_worker(payload)))
        return is_open


class SeenServer(WorkerServer):
    """Says of each message that it was handled."""

    def __init__(self, process: WorkerProcess, engine: Engine, writer: FrameWriter) -> None:
        super().__init__(engine.core, engine.models, writer)
        self._process = process

    def handle(self, message: ToWorker) -> None:
        if self._process.is_over:
            return  # of a killed process
        super().handle(message)
        self._process.on_seen(_names_of_handled(message))


class SimulatedGrammars:
    """In place of a compiler: takes its time, and allows everything."""

    cached_bytes = 0

    def __init__(self, process: WorkerProcess, random: Random, mean_s: float) -> None:
        self._process = process
        self._random = random
        self._mean_s = mean_s
        self._pool = threads.ThreadPoolExecutor(2)

    def compile(self, spec: GrammarSpec, tenant: str = "") -> "Future[SimulatedGrammars]":
        if self._random.random() < REFUSED_GRAMMARS:
            raise QueueFull("too many grammars")
        wait_s = self._mean_s * self._random.uniform(0, 2)
        compiled: Future[SimulatedGrammars] = self._pool.submit(self._compile, wait_s)
        self._process.on_seen(iter(("Compile",)))
        return compiled

    def matcher(self) -> None:
        """The simulated device asks no matcher."""

    def close(self) -> None:
        self._pool.shutdown()

    def _compile(self, wait_s: float) -> "SimulatedGrammars":
        threads.scheduler().sleep(wait_s)
        return self


def _names_of_sent(message: FromWorker) -> Iterator[str]:
    yield type(message).__name__
    if isinstance(message, Deltas) and any(_is_last(delta) for delta in message.deltas):
        yield "Last"


def _is_last(delta: TokenDelta) -> bool:
    return delta.finish_reason is not None


def _names_of_handled(message: ToWorker) -> Iterator[str]:
    if isinstance(message, Submit | Abort | Pause | Resume):
        yield type(message).__name__
    if isinstance(message, Submit) and any(len(each.token_ids) > each.prompt_tokens for each in message.submissions):
        yield "Replay"
