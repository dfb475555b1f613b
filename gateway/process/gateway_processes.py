"""`gateway_processes`: the supervisor of one engine process and of several gateway processes that share a port.

    supervisor ---- engine process, on a Unix socket in the data directory
        |               |  ...  |
        +---------- gateway 0 .. N-1, each with a journal of its own

Each gateway process listens on a socket of its own (`SO_REUSEPORT`), over which the kernel spreads connections by their
addresses. A socket that all inherit would be emptied by the first process that wakes: the event loop accepts until
nothing is left, and streams are long. It also ends with its process, so a dead one gets no connection. The supervisor
keeps the port by a socket that does not listen.

The supervisor serves nothing. It starts a process again that has ended, with growing delays if it ends early; kills and
starts again one whose event loop sends no heartbeat for `gateway_silence_s`; passes on SIGTERM as a drain; and its own
end, however it comes, is the end of all. A start has no such limit, since it may wait for the engine; a drain has its
deadline.
"""

import asyncio
import fcntl
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

import structlog

from engine.workers.supervisor import backoff_seconds
from gateway.config.settings import Settings
from gateway.errors import OperatorError
from gateway.process.journals import journal_path_of
from gateway.process.listener import bind, local_url
from gateway.process.process_start import DRAIN, FAILED, READY, STACKS, ProcessStart
from gateway.process.shared_engine import engine_socket, start_engine
from gateway.process.silence import CHECK_SECONDS, Silence
from gateway.process.termination import DrainSignal

MODULE = "gateway.process.gateway_process"
STACKS_SECONDS = 1.0
"""Time for a hung process to write the stacks of its threads before it is killed."""
LOCK_NAME = "gateway-processes.lock"
STOP_SECONDS = 15.0
"""Time beyond `shutdown_deadline_s` in which a process settles what was cut off and delivers usage."""

_log = structlog.get_logger("turnpike.serve")


def run_processes(settings: Settings, pepper: bytes, address: tuple[str, int], signal: DrainSignal) -> None:
    """Serve until the end of the drain that `signal` begins. `address`: host and port. The database is prepared.

    Raises:
        OperatorError: a process cannot be started, or another supervisor serves the data directory.
    """
    with ExitStack() as stack:
        stack.enter_context(_lock(settings.data_dir))
        reserved = stack.enter_context(bind(*address, shared=True))
        engine = start_engine(settings)
        if engine is not None:
            stack.callback(engine_socket(settings.data_dir).unlink, missing_ok=True)
            stack.callback(engine.close)
        first = ProcessStart(
            settings=settings,
            pepper=pepper,
            index=0,
            count=settings.gateway_processes,
            starts_total=0,
            engine_socket=None if engine is None else engine_socket(settings.data_dir),
            salt_key=secrets.token_bytes(32),
        )
        asyncio.run(GatewayProcesses(first, reserved).run(signal))


class GatewayProcesses:
    """Keeps the gateway processes running. Used on one event loop."""

    def __init__(self, first: ProcessStart, reserved: socket.socket) -> None:
        """`first`: the start of all of them, but for what each has of its own. `reserved`: keeps their address."""
        self._first = first
        self._reserved = reserved
        self._draining = asyncio.Event()
        self._running: dict[int, _Process] = {}
        self._ready: set[int] = set()
        """Indices that have been ready."""

    async def run(self, signal: DrainSignal) -> None:
        """Returns when all processes have ended after the drain.

        Raises:
            OperatorError: a process could not serve from the beginning.
        """
        loop = asyncio.get_running_loop()

        def begin() -> None:
            loop.call_soon_threadsafe(self._draining.set)

        signal.begins(begin)
        keepers = [asyncio.create_task(self._keep(index)) for index in range(self._first.count)]
        draining = asyncio.create_task(self._drain())
        try:
            await asyncio.gather(*keepers)
        finally:
            self._draining.set()  # no process is started any more
            draining.cancel()
            for process in self._running.values():
                process.kill()
            await asyncio.gather(*keepers, draining, return_exceptions=True)
        _log.info("stopped", processes=self._first.count)

    async def _drain(self) -> None:
        """Begin the drain of all processes, and kill what is left after its time."""
        await self._draining.wait()
        settings = self._first.settings
        _log.info("draining", processes=len(self._running), deadline_s=settings.shutdown_deadline_s)
        for process in self._running.values():
            process.drain()
        await asyncio.sleep(settings.shutdown_deadline_s + STOP_SECONDS)
        for index, process in self._running.items():
            _log.error("a gateway process does not end and is killed", process=index)
            process.kill()

    async def _keep(self, index: int) -> None:
        starts_total = failures = 0
        while not self._draining.is_set():
            begun_s = time.monotonic()
            starts_total += 1
            ready_s = await self._run_one(index, starts_total)
            if self._draining.is_set():
                return
            served = ready_s is not None and time.monotonic() - ready_s > ready_s - begun_s
            failures = 0 if served else failures + 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._draining.wait(), backoff_seconds(failures))

    async def _run_one(self, index: int, starts_total: int) -> float | None:
        """Run one process to its end. Returns when it became ready, in monotonic seconds; None: it did not."""
        process = await _Process.start(self._start_of(index, starts_total), self._reserved)
        self._running[index] = process
        ready_s = None
        watching: asyncio.Task[None] | None = None
        try:
            if self._draining.is_set():  # the signal came while it was started
                process.drain()
            failure = await process.until_ready()
            if failure is None:
                ready_s = time.monotonic()
                self._on_ready(index)
                watching = asyncio.create_task(self._watch(index, process))
            status = await process.ended()
        finally:
            if watching is not None:
                watching.cancel()
            process.close()
            del self._running[index]
        if self._draining.is_set():
            if status:
                _log.error("a gateway process has ended with an error", process=index, status=status)
            return ready_s
        if failure is not None and index not in self._ready:
            raise OperatorError(failure)
        _log.error("a gateway process has ended and is started again", process=index, status=status, reason=failure)
        return ready_s

    async def _watch(self, index: int, process: "_Process") -> None:
        """Kill a process that serves if it is silent for too long before the drain."""
        limit_s = self._first.settings.gateway_silence_s
        silence = Silence(limit_s)
        hearing = asyncio.create_task(process.hear(silence.heard))
        try:
            while not self._draining.is_set():
                await asyncio.sleep(CHECK_SECONDS)
                if silence.check() and not self._draining.is_set():
                    _log.error(
                        "a gateway process hangs and is killed", process=index, pid=process.pid, silent_s=limit_s
                    )
                    process.write_stacks()
                    await asyncio.sleep(STACKS_SECONDS)
                    process.kill()
                    return
        finally:
            hearing.cancel()

    def _start_of(self, index: int, starts_total: int) -> ProcessStart:
        settings = self._first.settings
        own = settings.model_copy(update={"journal_path": journal_path_of(settings.journal_path, index)})
        return replace(self._first, settings=own, index=index, starts_total=starts_total)

    def _on_ready(self, index: int) -> None:
        was_complete = len(self._ready) == self._first.count
        self._ready.add(index)
        if len(self._ready) == self._first.count and not was_complete:
            settings = self._first.settings
            names = list(settings.served_names)
            _log.info("ready", url=local_url(self._reserved), processes=self._first.count, models=names)


class _Process:
    """A running process."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, start: ProcessStart, reserved: socket.socket) -> "_Process":
        here, there = socket.socketpair()
        # Closed here once the process has it: a listening socket whose process has ended must not take connections.
        with there, bind(*reserved.getsockname()[:2], shared=True) as listener:
            descriptors = (there.fileno(), listener.fileno())
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *_warning_options(), "-m", MODULE, *map(str, descriptors)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=descriptors,
                env=os.environ | {"PYTHONPATH": ":".join(filter(None, sys.path))},
            )
        reader, writer = await asyncio.open_connection(sock=here)
        writer.write(start.encode())
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def until_ready(self) -> str | None:
        """Wait until it serves. Returns the reason if it cannot."""
        try:
            line = await self._reader.readline()
        except OSError:
            line = b""
        if line == READY:
            return None
        if line.startswith(FAILED):
            return line.removeprefix(FAILED).decode().strip()
        return "a gateway process ended while it started; its log says why"

    async def hear(self, on_heartbeat: Callable[[], None]) -> None:
        """After `until_ready`: call `on_heartbeat` for what the process sends, until it has closed the connection."""
        with suppress(OSError):
            while await self._reader.read(4096):
                on_heartbeat()

    async def ended(self) -> int:
        """Wait for its end. Returns its status, or less a signal's number."""
        return await self._process.wait()

    def drain(self) -> None:
        """Begin its drain."""
        with suppress(OSError):
            self._writer.write(DRAIN)

    def close(self) -> None:
        """Kill it, and close the connection to it. Idempotent."""
        self.kill()
        self._writer.close()

    def write_stacks(self) -> None:
        """Have it write the stacks of its threads."""
        with suppress(ProcessLookupError):
            self._process.send_signal(STACKS)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        with suppress(ProcessLookupError):
            self._process.kill()


def _warning_options() -> list[str]:
    return [f"-W{each}" for each in sys.warnoptions]


def _lock(data_dir: Path) -> IO[bytes]:
    """The lock of a supervisor on its data directory: the open file.

    Raises:
        OperatorError: another one has it.
    """
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = open(data_dir / LOCK_NAME, "ab")  # noqa: SIM115 the caller closes it
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise OperatorError(f"another turnpike serve with gateway_processes runs on {data_dir}") from None
    return lock
