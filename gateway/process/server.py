"""uvicorn, with a way down that loses nothing.

From the first signal on, readiness is off and new work is refused (`drain.py`), while the listener goes on
answering: probes, scrapes, administrators, and a proper 503 for whoever has not noticed yet. When what ran at the
signal has ended, and `delay_s` has passed so that load balancers have noticed, the listener closes and idle connections
with it. At `deadline_s` what still runs is cut: each client is told so, and is billed for what it was sent.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import structlog
import uvicorn
from starlette.types import ASGIApp

from gateway.http.bounds import MAX_STALLED_SECONDS
from gateway.http.drain import Drain
from gateway.process.connection import Connection, server_config

CUT_S = 5.0
"""How long after the deadline requests that were cut may take to settle. They take milliseconds; on a machine without a
core to spare the engine's last word on them takes up to `admit.LAST_WORD_S`, and then they settle."""

FLUSH_S = 1.0
"""Of these, how long a client may take to read why. One that does not read would keep its request from settling."""

GRACE_S = 0.1
"""How long connections without a request stay after the listener: one may be on its way, and is refused in words."""

_POLL_S = 0.02

_log = structlog.get_logger("turnpike.serve")


class Server(uvicorn.Server):
    """Serves until `begin_drain`, and then as the module says. Signals are the caller's."""

    def __init__(
        self,
        app: ASGIApp,
        drain: Drain,
        *,
        delay_s: float,
        deadline_s: float,
        on_ready: Callable[[], None],
        trusted_proxies: Sequence[str] = (),
        stall_seconds: float = MAX_STALLED_SECONDS,
    ) -> None:
        super().__init__(server_config(app, drain, trusted_proxies=trusted_proxies, stall_seconds=stall_seconds))
        self._drain = drain
        self._delay_s = delay_s
        self._deadline_s = deadline_s
        self._on_ready = on_ready
        self._begun_s: float | None = None
        """When the drain was noticed, monotonic."""
        self._running: set[asyncio.Task[None]] = set()
        """What ran then. What came later was refused, or is short."""

    def begin_drain(self) -> None:
        """May be called by a signal handler."""
        self._drain.begin()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's, ten times a second. True: stop listening."""
        return await super().on_tick(counter) and self._drained()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        while not self._drained():  # uvicorn skips its main loop where the signal came as soon as it listened
            await asyncio.sleep(_POLL_S)
        assert self._begun_s is not None
        state = self.server_state
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        await asyncio.sleep(GRACE_S)
        for connection in self._connections():
            connection.shutdown()
        await self._until_gone(self._begun_s + self._deadline_s - time.monotonic())
        if state.tasks:
            await self._cut()
        for connection in self._connections():
            connection.transport.abort()
        await self.lifespan.shutdown()
        _log.info("stopped", after_s=round(time.monotonic() - self._begun_s, 1))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None: whoever serves has handlers already."""
        yield

    def _drained(self) -> bool:
        now = time.monotonic()
        if self._begun_s is None:
            self._begun_s = now
            self._running = set(self.server_state.tasks)
            for connection in self._connections():
                connection.end_with_answer()
            _log.info("draining", requests=len(self._running), deadline_s=self._deadline_s)
        elapsed_s = now - self._begun_s
        if elapsed_s >= self._deadline_s:
            return True
        return elapsed_s >= self._delay_s and not self._running & self.server_state.tasks

    async def _cut(self) -> None:
        """End what the deadline found running. Its requests know how to take that (`CancelledError`)."""
        tasks = self.server_state.tasks
        _log.warning("requests are cut off at the deadline", requests=len(tasks))
        for task in list(tasks):
            task.cancel()
        await self._until_gone(FLUSH_S)
        for connection in self._connections():
            connection.cut_if_unread()
        await self._until_gone(CUT_S - FLUSH_S)
        if tasks:
            _log.error("requests did not end; the next start bills what was sent of them", requests=len(tasks))

    def _connections(self) -> list[Connection]:
        """A copy: each leaves when it is closed."""
        return cast(list[Connection], list(self.server_state.connections))

    async def _until_gone(self, seconds: float) -> None:
        """Wait for every request and connection to end, at most so long."""
        end = time.monotonic() + seconds
        while (self.server_state.tasks or self.server_state.connections) and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
