"""A worker for any number of clients, which it serves with one engine, over TCP or a Unix socket."""

import asyncio
import itertools
import logging
import ssl
from contextlib import suppress

import msgspec

from engine.engine import Engine
from engine.workers.frames import ConnectionEnded, LoopFrameWriter, received
from engine.workers.messages import Close, Draining, decode_to_worker, encode
from engine.workers.prefix_publishers import PrefixPublishers
from engine.workers.server import WorkerServer, ready_message
from engine.workers.unix_address import UnixAddress

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1


class WorkerListener:
    """Accepts clients, each with a `WorkerServer` of its own. Runs on one event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._arrivals = itertools.count()
        self._clients: dict[WorkerServer, LoopFrameWriter] = {}
        self._ended = asyncio.Event()
        self._draining = False
        self._listener: asyncio.Server | None = None
        self._prefixes = PrefixPublishers(engine.core, engine.models)
        self._publishing: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._listener is not None, "it does not listen"
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    @property
    def clients(self) -> int:
        """Connected clients."""
        return len(self._clients)

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None) -> None:
        """Start to accept clients; `context` None: without TLS.

        Raises:
            OSError: the address cannot be used.
        """
        self._publishing = asyncio.create_task(self._prefixes.run())
        self._listener = await asyncio.start_server(self._serve, host, port, ssl=context)

    async def listen_on_file(self, address: UnixAddress) -> None:
        """Start to accept clients of the same user.

        Raises:
            OSError: the address cannot be used.
        """
        self._publishing = asyncio.create_task(self._prefixes.run())
        self._listener = await address.listen(self._serve)

    async def drain(self, seconds: float) -> None:
        """Take no new requests, and wait for those that run, for `seconds` at most. Clients submit what is left to
        other workers when the connection closes."""
        self._draining = True
        for writer in self._clients.values():
            writer.send(encode(Draining()))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(client.is_busy for client in self._clients):
                    await asyncio.sleep(_POLL_SECONDS)

    async def close(self) -> None:
        """Close all connections and the listener."""
        self._ended.set()
        if self._listener is not None:
            self._listener.close()
        for writer in list(self._clients.values()):
            writer.close()
        if self._publishing is not None:
            self._publishing.cancel()
        await asyncio.sleep(0)

    async def run(self) -> None:
        """Returns when the engine has ended or this is closed."""
        while self._engine.core.alive and not self._ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._ended.wait()

    async def _serve(self, stream: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        peer = to_client.get_extra_info("peername") or "a socket of this machine"
        logger.info("a client connects from %s", peer)
        writer, ended = LoopFrameWriter(to_client), asyncio.Event()
        server = WorkerServer(self._engine.core, self._engine.models, writer, self._arrivals, self._prefixes)
        self._clients[server] = writer
        writer.send(encode(ready_message(self._engine)))
        if self._draining:
            writer.send(encode(Draining()))
        reports = asyncio.create_task(server.report(ended))
        try:
            async for payload in received(stream):
                message = decode_to_worker(payload)
                if isinstance(message, Close):
                    break
                server.handle(message)
        except (ConnectionEnded, msgspec.MsgspecError, ssl.SSLError) as reason:
            logger.info("the client %s has gone: %s", peer, reason)
        finally:
            ended.set()
            del self._clients[server]
            server.abort_all()
            await reports
            writer.close()
