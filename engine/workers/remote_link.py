"""A connection to a worker: it is made, watched, and made again when it has ended."""

import asyncio
import logging
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

import msgspec

from engine.workers.frames import ConnectionEnded, LoopFrameWriter, received
from engine.workers.messages import Close, Failed, FromWorker, Log, Ready, ToWorker, decode_from_worker, encode
from engine.workers.supervisor import WorkerEvents, backoff_seconds
from engine.workers.unix_address import UnixAddress

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 10.0
"""Time without any message, on top of the longest step, after which a worker counts as lost."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker listens on TCP."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Of `tcp://host:port`, with an IPv6 address in brackets.

        Raises:
            ValueError: it has another form.
        """
        scheme, separator, rest = text.partition("://")
        host, colon, port = rest.rpartition(":")
        if scheme != "tcp" or not separator or not colon or not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"a worker's address has the form tcp://host:port, got {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return is_loopback(self.host)

    async def connect(
        self, context: ssl.SSLContext | None, server_name: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the worker. `context` None: without TLS. `server_name`: the name in its certificate; None:
        the host.

        Raises:
            OSError: no worker listens, or the host is no name.
        """
        name = None if context is None else server_name or self.host
        try:
            return await asyncio.open_connection(self.host, self.port, ssl=context, server_hostname=name)
        except UnicodeError as error:  # a label that is empty or too long
            raise OSError(f"{self.host!r} is no name of a host: {error}") from None


def is_loopback(host: str) -> bool:
    """Whether an address or name is of this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_address(text: str) -> Address | UnixAddress:
    """Of `tcp://host:port` or `unix:/path`.

    Raises:
        ValueError: it has another form.
    """
    return UnixAddress.parse(text) if text.startswith("unix:") else Address.parse(text)


class RemoteLink:
    """Stays connected to one worker on a thread of its own, until it is closed. What it receives goes to `events`, on
    that thread."""

    def __init__(
        self,
        address: Address | UnixAddress,
        context: ssl.SSLContext | None,
        events: WorkerEvents,
        *,
        step_seconds: float,
        server_name: str | None = None,
    ) -> None:
        """`context` None: without TLS. `step_seconds`: the longest time of a step of the worker. `server_name`: the
        name in its certificate; None: its host."""
        self._address = address
        self._server_name = server_name
        self._context = context
        self._events = events
        self._silence_seconds = step_seconds + SILENCE_SECONDS
        self._writer: LoopFrameWriter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.restarts_total = 0
        """Connections that have ended."""
        self._thread = threading.Thread(target=self._run, name=f"turnpike-{address}", daemon=True)

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def send(self, message: ToWorker) -> bool:
        """Returns whether the connection is open. Does not block."""
        writer = self._writer
        return writer is not None and writer.send(encode(message))

    def close(self) -> None:
        """End the connection and the thread. Idempotent, callable from any thread but the link's."""
        self._closing = True
        self.send(Close())
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(self._stay_connected())
        finally:
            self._events.on_given_up("the engine is closed")

    async def _stay_connected(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        failures = 0
        while not self._closing:
            try:
                was_ready = await self._converse()
            except (OSError, TimeoutError, ConnectionEnded, msgspec.MsgspecError) as reason:
                if not failures:
                    logger.warning("no connection to the worker at %s: %s", self._address, reason or "timeout")
                was_ready = False
            except Exception:  # a thread that ended here would be a worker that is lost for good
                logger.exception("the connection to the worker at %s has failed", self._address)
                was_ready = False
            failures = 0 if was_ready else failures + 1
            await asyncio.sleep(backoff_seconds(failures) if failures else 0.1)

    async def _converse(self) -> bool:
        """One connection from its beginning to its end. Returns whether the worker was ready.

        Raises:
            OSError, TimeoutError, ConnectionEnded, msgspec.MsgspecError: the worker did not become ready.
        """
        async with asyncio.timeout(CONNECT_SECONDS):
            stream, to_worker = await self._address.connect(self._context, self._server_name)
        self._writer = LoopFrameWriter(to_worker)
        ready = False
        try:
            async for message in self._messages(stream):
                ready |= self._handle(message)
        except (ConnectionEnded, TimeoutError, ssl.SSLError, msgspec.MsgspecError) as reason:
            if not ready:
                raise
            logger.warning("the worker at %s is lost: %s", self._address, reason or "it is silent")
        finally:
            writer, self._writer = self._writer, None
            writer.close()
            to_worker.transport.abort()  # at once: the loop may end with this task
            if ready:
                self.restarts_total += not self._closing
                self._events.on_ended()
        return ready

    async def _messages(self, stream: asyncio.StreamReader) -> AsyncIterator[FromWorker]:
        payloads = aiter(received(stream))
        while True:
            async with asyncio.timeout(self._silence_seconds):
                payload = await anext(payloads, None)
            if payload is None:
                raise ConnectionEnded("it has closed the connection")
            yield decode_from_worker(payload)

    def _handle(self, message: FromWorker) -> bool:
        """Returns whether the worker has become ready."""
        match message:
            case Ready():
                self._events.on_ready(message)
                return True
            case Failed():
                raise ConnectionEnded(message.message)
            case Log():
                pass  # it has a log of its own
            case _:
                self._events.on_message(message)
        return False
