"""Messages between a gateway process and its supervisor.

They share a socket pair. The supervisor sends one `ProcessStart`, and the line `drain` at the end; the process answers
`ready`, or `failed` with the reason. After `ready` its event loop sends heartbeats, each an empty line. When one side
has gone, the other learns of it from the end of the connection: a process whose supervisor was killed ends at once.
"""

import asyncio
import os
import pickle
import signal
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.config.settings import Settings
from gateway.process.silence import HEARTBEAT_SECONDS

DRAIN = b"drain\n"
READY = b"ready\n"
FAILED = b"failed "
HEARTBEAT = b"\n"
"""One byte, so that no part of it is sent alone."""
STACKS = signal.SIGUSR1
"""At this signal a gateway process that is not stopped writes the stacks of its threads to its log."""

_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class ProcessStart:
    """`settings`: with this process's own journal. `index` below `count` processes; 0 is the one that serves commands
    on the data directory. `starts_total`: of the process with this index, with this one. `engine_socket`: of the
    engine process; None: there is none. `salt_key`: see `EngineConfig`."""

    settings: Settings
    pepper: bytes
    index: int
    count: int
    starts_total: int
    engine_socket: Path | None
    salt_key: bytes

    def encode(self) -> bytes:
        """For `receive_start`. It contains secrets."""
        payload = pickle.dumps(self)
        return _LENGTH.pack(len(payload)) + payload


def receive_start(connection: socket.socket) -> ProcessStart:
    """The supervisor's first message.

    Raises:
        EOFError: the supervisor has gone.
    """
    (length,) = _LENGTH.unpack(_receive(connection, _LENGTH.size))
    start = pickle.loads(_receive(connection, length))  # of the parent process alone
    assert isinstance(start, ProcessStart)
    return start


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        data = connection.recv(size - len(received))
        if not data:
            raise EOFError("the supervisor has gone")
        received += data
    return bytes(received)


class SupervisorLink:
    """The process's side, after its start. It is in the place of `Termination`: the supervisor gets the signals."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._changed = threading.Lock()
        self._begin: Callable[[], None] | None = None
        threading.Thread(target=self._run, name="turnpike-supervisor", daemon=True).start()

    def begins(self, begin: Callable[[], None]) -> None:
        """Set the function that starts the drain, on the running event loop. Without one the process ends at once."""
        loop = asyncio.get_running_loop()
        with self._changed:
            self._begin = partial(_call_soon, loop, begin)

    def ready(self) -> None:
        """The process serves."""
        self._connection.sendall(READY)

    def send_heartbeats(self) -> None:
        """Send heartbeats on the running event loop, for as long as it runs. A thread would send them for a loop that
        stands still."""
        with suppress(OSError):  # the supervisor has gone, or does not read: no call of the loop waits for it
            self._connection.send(HEARTBEAT, socket.MSG_DONTWAIT)
        asyncio.get_running_loop().call_later(HEARTBEAT_SECONDS, self.send_heartbeats)

    def failed(self, reason: str) -> None:
        """The process cannot serve and ends."""
        self._connection.sendall(FAILED + reason.replace("\n", " ").encode() + b"\n")

    def _run(self) -> None:
        # A supervisor that is killed with heartbeats that it has not read resets the connection.
        with suppress(OSError), self._connection.makefile("rb") as lines:
            for line in lines:
                if line == DRAIN:
                    self._drain()
        os._exit(1)  # the supervisor has ended: nothing of a stream is lost that its journal does not have

    def _drain(self) -> None:
        with self._changed:
            begin, self._begin = self._begin, None
        if begin is None:
            os._exit(0)
        begin()


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the process ends
        loop.call_soon_threadsafe(function)
