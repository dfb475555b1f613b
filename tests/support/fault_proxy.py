"""A TCP proxy that makes a real server fail."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum

CHUNK_BYTES = 65_536


class Fault(Enum):
    NONE = "none"
    REFUSE = "refuse"
    """The port is closed, and open connections are cut."""
    RESET = "reset"
    """Connections are reset in the middle of the first reply."""
    SLOW = "slow"
    """Replies come `SLOW_S` late."""
    BLACK_HOLE = "black hole"
    """Connections are taken, and nothing ever comes back."""


SLOW_S = 2.0


class FaultProxy:
    """Between a client and the server at `target_port`, on one loopback port for good."""

    def __init__(self, target_port: int, port: int = 0) -> None:
        self._target_port = target_port
        self._fault = Fault.NONE
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._relays: set[asyncio.Task[None]] = set()
        self.port = port

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()
        if self._relays:
            await asyncio.wait(self._relays)

    async def set(self, fault: Fault) -> None:
        """From now on, for open connections too."""
        before, self._fault = self._fault, fault
        if fault is Fault.REFUSE:
            await self.stop()
        elif before is Fault.REFUSE:
            await self.start()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._relays.add(task := asyncio.current_task())
        task.add_done_callback(self._relays.discard)
        self._open.add(writer)
        target = None
        try:
            target_reader, target = await asyncio.open_connection("127.0.0.1", self._target_port)
            self._open.add(target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._relay(reader, target, writer, replies=False))
                both.create_task(self._relay(target_reader, writer, writer, replies=True))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for each in (writer, target):
                if each is not None:
                    each.transport.abort()
                    self._open.discard(each)

    async def _relay(
        self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, client: asyncio.StreamWriter, *, replies: bool
    ) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self._fault is Fault.BLACK_HOLE:
                continue
            if replies and self._fault is Fault.SLOW:
                await asyncio.sleep(SLOW_S)
            if replies and self._fault is Fault.RESET:
                to.write(data[: len(data) // 2])
                with contextlib.suppress(ConnectionError):
                    await to.drain()
                linger_none = struct.pack("ii", 1, 0)
                client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_none)
                raise ConnectionResetError
            to.write(data)
            await to.drain()
        raise ConnectionResetError  # one side has closed: the other follows


@asynccontextmanager
async def fault_proxy(target_port: int, port: int = 0) -> AsyncIterator[FaultProxy]:
    """Listens on `port`; 0 takes any free one."""
    proxy = FaultProxy(target_port, port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
