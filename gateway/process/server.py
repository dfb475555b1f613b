"""uvicorn with a graceful shutdown.

After the first signal, readiness is off and new generation requests get 503 (`drain.py`). The listener still serves
probes, metrics and the admin API. When the requests that ran at the signal have ended and `delay_s` has passed, so that
load balancers have seen the readiness, the listener and idle connections close. At `deadline_s` the remaining requests
are cancelled: each client gets an error and is billed for the tokens that it was sent.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import structlog
import uvicorn
from starlette.types import ASGIApp

from gateway.http.bounds import MAX_STALLED_SECONDS
from gateway.http.drain import Drain
from gateway.process.admin_socket import AdminSocket
from gateway.process.connection import Connection, server_config

CUT_S = 5.0
"""Time after the deadline in which cancelled requests settle. It takes milliseconds; on a fully loaded machine the
engine's last report takes up to `admit.LAST_WORD_S`."""

FLUSH_S = 1.0
"""Part of `CUT_S` in which a client may read its error. A client that does not read would block its request."""

GRACE_S = 0.1
"""Time that idle connections stay open after the listener closes: a request may be on its way, and gets 503."""

_POLL_S = 0.02

_log = structlog.get_logger("turnpike.serve")


class CallListener(Protocol):
    """A listener of another protocol for the same services."""

    async def start(self, tasks: set[asyncio.Task[None]]) -> None:
        """Serve. The task of each request is in `tasks` while it runs, and ends in good order when it is cancelled."""
        ...

    def drain(self) -> None:
        """The drain has begun. Idempotent."""
        ...

    async def aclose(self) -> None:
        """Stop listening, and close the connections, which have no request any more. Idempotent."""
        ...


class Server(uvicorn.Server):
    """Serves until `begin_drain`, then shuts down gracefully. The caller handles signals."""

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
        local: tuple[AdminSocket, ASGIApp] | None = None,
        calls: CallListener | None = None,
    ) -> None:
        """`local`: the socket for commands on this machine, and what it serves. The caller closes the socket. `calls`:
        a listener whose requests are drained and cut off with those of HTTP."""
        super().__init__(server_config(app, drain, trusted_proxies=trusted_proxies, stall_seconds=stall_seconds))
        self._local = local
        self._calls = calls
        self._drain = drain
        self._delay_s = delay_s
        self._deadline_s = deadline_s
        self._on_ready = on_ready
        self._begun_s: float | None = None
        """Start of the drain, monotonic seconds; None before it."""
        self._running: set[asyncio.Task[None]] = set()
        """Requests that ran at the start of the drain. Later ones were rejected, or are short."""

    def begin_drain(self) -> None:
        """Start the drain. May be called by a signal handler."""
        self._drain.begin()
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._local is not None:
            admin_socket, app = self._local
            self.servers.append(await admin_socket.serve(app, self._drain, self.server_state))
        if self._calls is not None:
            await self._calls.start(self.server_state.tasks)
        self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """uvicorn's hook, ten times a second. True stops the listener."""
        return await super().on_tick(counter) and self._drained()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        while not self._drained():  # uvicorn skips its main loop if the signal came during its start
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
        if self._calls is not None:
            await self._calls.aclose()
        await self.lifespan.shutdown()
        _log.info("stopped", after_s=round(time.monotonic() - self._begun_s, 1))

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers: the caller has them."""
        yield

    def _drained(self) -> bool:
        now = time.monotonic()
        if self._begun_s is None:
            self._begun_s = now
            self._running = set(self.server_state.tasks)
            for connection in self._connections():
                connection.end_with_answer()
            if self._calls is not None:
                self._calls.drain()
            _log.info("draining", requests=len(self._running), deadline_s=self._deadline_s)
        elapsed_s = now - self._begun_s
        if elapsed_s >= self._deadline_s:
            return True
        return elapsed_s >= self._delay_s and not self._running & self.server_state.tasks

    async def _cut(self) -> None:
        """Cancel the requests that still run at the deadline. They handle `CancelledError`."""
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
        """A copy, since closing a connection removes it."""
        return cast(list[Connection], list(self.server_state.connections))

    async def _until_gone(self, seconds: float) -> None:
        """Wait for all requests and connections to end, at most `seconds`."""
        end = time.monotonic() + seconds
        while (self.server_state.tasks or self.server_state.connections) and time.monotonic() < end:
            await asyncio.sleep(_POLL_S)
