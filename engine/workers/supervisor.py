"""Keeps a worker running: starts its process, reads what it sends, and starts it again when it has ended."""

import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import msgspec

from engine.errors import EngineError
from engine.workers.frames import ConnectionEnded, FrameReader, FrameWriter, receive
from engine.workers.messages import (
    Close,
    Failed,
    FromWorker,
    Loading,
    Log,
    Ready,
    Start,
    ToWorker,
    decode_from_worker,
    encode,
)

logger = logging.getLogger(__name__)

PROCESS = "engine.workers.process"
SILENCE_SECONDS = 30.0
"""Time without any message, on top of the longest step, after which a worker counts as hung: it sends its metrics many
times a second, even while a step hangs."""
MIN_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
STOP_SECONDS = 10.0
"""Time for a worker to end by itself when it is closed."""


class WorkerEvents(Protocol):
    """Where the supervisor reports, on its thread."""

    def on_loading(self, model: str, done: int, total: int) -> None:
        """Bytes of a model's weights are loaded."""
        ...

    def on_ready(self, ready: Ready) -> None:
        """A worker can take requests."""
        ...

    def on_message(self, message: FromWorker) -> None:
        """A message of a running worker."""
        ...

    def on_ended(self) -> None:
        """The worker that was ready has ended; another is being started."""
        ...

    def on_start_failed(self) -> None:
        """A later worker did not become ready; another will be tried."""
        ...

    def on_given_up(self, reason: str) -> None:
        """No worker will be started any more, or none can be."""
        ...


class LoadFailed(EngineError):
    """The first worker could not load its models. `kind`: name of the class of its error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Supervisor:
    """Runs one worker after another on a thread, until it is closed. Each is a process with all of its state."""

    def __init__(self, start: Start, events: WorkerEvents, module: str = PROCESS) -> None:
        """`module`: the program of a worker."""
        self._module = module
        self._start = start
        self._events = events
        self._silence_seconds = start.config.step_timeout_seconds + SILENCE_SECONDS
        self._closing = threading.Event()
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: FrameWriter | None = None
        self._failure: LoadFailed | None = None
        self._started = threading.Event()
        """Set once the first worker is ready or has failed."""
        self.restarts_total = 0
        self._thread = threading.Thread(target=self._run, name="turnpike-workers", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the current worker."""
        process = self._process
        return None if process is None else process.pid

    def start(self) -> None:
        """Start the first worker, and wait until it is ready.

        Raises:
            LoadFailed: it cannot load its models.
        """
        self._thread.start()
        try:
            self._started.wait()
        except BaseException:
            self.close()
            raise
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def send(self, message: ToWorker) -> bool:
        """Returns whether the connection is open. Does not block."""
        writer = self._writer
        return writer is not None and writer.send(encode(message))

    def close(self) -> None:
        """End the worker and the thread. Idempotent, callable from any thread but the supervisor's."""
        self._closing.set()
        self.send(Close())
        with self._changing:
            process = self._process
        if process is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        failures = 0
        try:
            while not self._closing.is_set():
                begun_s = time.monotonic()
                ready_s = self._run_one()
                if self._closing.is_set() or not self._started.is_set():
                    break
                if ready_s is None:
                    self._events.on_start_failed()
                # One that has served for longer than it took to start is replaced without delay.
                served = ready_s is not None and time.monotonic() - ready_s > ready_s - begun_s
                failures = 0 if served else failures + 1
                self.restarts_total += 1
                self._closing.wait(backoff_seconds(failures))
        except LoadFailed as error:
            self._failure = error
        except Exception:
            logger.critical("the supervision of the engine process has failed", exc_info=True)
        finally:
            self._events.on_given_up("the engine is closed" if self._closing.is_set() else "the engine cannot start")
            if not self._started.is_set():
                self._failure = self._failure or LoadFailed("EngineError", "the engine process ended while it started")
            self._started.set()

    def _run_one(self) -> float | None:
        """Run one worker to its end. Returns when it became ready, in monotonic seconds; None: it did not."""
        ready_s: float | None = None
        with self._worker() as connection:
            reader = FrameReader()
            try:
                while True:
                    for payload in self._receive(connection, reader, watched=ready_s is not None):
                        if self._handle(decode_from_worker(payload)):
                            ready_s = time.monotonic()
            except (ConnectionEnded, msgspec.MsgspecError) as reason:
                if not self._closing.is_set():
                    logger.error("the engine process has ended: %s", reason)
        if ready_s is not None:
            self._events.on_ended()
        return ready_s

    def _receive(self, connection: socket.socket, reader: FrameReader, *, watched: bool) -> list[bytes]:
        """Raises: ConnectionEnded: the worker has ended, or is silent for too long."""
        if watched:
            poll = select.poll()
            poll.register(connection, select.POLLIN)
            if not poll.poll(1000 * self._silence_seconds):
                raise ConnectionEnded(f"it has sent nothing for {self._silence_seconds:g} s")
        return receive(connection, reader)

    def _handle(self, message: FromWorker) -> bool:
        """Returns whether the worker has become ready."""
        match message:
            case Loading():
                self._events.on_loading(message.model, message.done, message.total)
            case Ready():
                self._events.on_ready(message)
                self._started.set()
                return True
            case Failed():
                if not self._started.is_set():
                    raise LoadFailed(message.kind, message.message)
                raise ConnectionEnded(message.message)
            case Log():
                logging.getLogger(message.name).log(message.level, "%s", message.message)
            case _:
                self._events.on_message(message)
        return False

    @contextmanager
    def _worker(self) -> Iterator[socket.socket]:
        """A process, killed on exit, and the connection to it."""
        here, there = socket.socketpair()
        with here:
            with there, self._changing:
                process = self._process = subprocess.Popen(
                    [sys.executable, "-m", self._module, str(there.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[there.fileno()],
                    env=_environment(),
                )
            writer = self._writer = FrameWriter(here)
            try:
                writer.send(encode(self._start))
                yield here
            finally:
                self._writer = None
                writer.close()
                with self._changing:
                    process.kill()
                    process.wait()


def backoff_seconds(failures: int) -> float:
    """The wait before the next start. `failures`: workers in a row that have ended early."""
    if failures == 0:
        return 0.0
    return float(min(MIN_BACKOFF_SECONDS * 2 ** (failures - 1), MAX_BACKOFF_SECONDS))


def _environment() -> dict[str, str]:
    """The worker imports what this process does, and gets none of the gateway's settings and secrets."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TURNPIKE_")}
    return own | {"PYTHONPATH": ":".join(filter(None, sys.path))}
