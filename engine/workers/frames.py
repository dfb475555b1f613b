"""Frames on a stream socket: four bytes of length (big-endian), a version byte, a payload."""

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Protocol

VERSION = 2
"""Of the messages. Both sides are of one release: another version ends the connection."""
MAX_FRAME_BYTES = 1 << 30
MAX_UNSENT_BYTES = 64 << 20
"""Bytes that a peer may leave unread. More end the connection: it does not read any more."""

_HEADER = struct.Struct(">IB")
_READ_BYTES = 1 << 18


class ConnectionEnded(Exception):
    """The other side has closed the connection, or sends what is no frame of this version."""


class FrameSender(Protocol):
    """Sends frames in order. Thread-safe."""

    def send(self, payload: bytes) -> bool:
        """Does not block. Returns whether the connection is still open; on one that has ended nothing is sent."""
        ...

    def close(self) -> None:
        """Close the connection, at once. Idempotent."""
        ...


class LoopFrameWriter:
    """A `FrameSender` for a stream of an event loop, with TLS or without."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._ended = False

    def send(self, payload: bytes) -> bool:
        return not self._ended and self._call(lambda: self._write(payload))

    def close(self) -> None:
        self._ended = True
        self._call(self._writer.transport.abort)

    def _write(self, payload: bytes) -> None:
        if self._writer.is_closing():
            self._ended = True
            return
        self._writer.write(_HEADER.pack(len(payload), VERSION) + payload)
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.close()

    def _call(self, action: Callable[[], None]) -> bool:
        try:
            self._loop.call_soon_threadsafe(action)
        except RuntimeError:  # the loop is closed
            self._ended = True
        return not self._ended


class FrameWriter:
    """Sends frames in order. A `send` never blocks: where the socket is full, a thread sends the rest. Thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._changed = threading.Condition()
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._ended = False
        self._thread: threading.Thread | None = None

    def send(self, payload: bytes) -> bool:
        """Returns whether the connection is still open; what is sent on one that has ended is dropped."""
        frame = memoryview(_HEADER.pack(len(payload), VERSION) + payload)
        with self._changed:
            if self._ended:
                return False
            if not self._unsent:
                frame = frame[self._send_now(frame) :]
            if frame and not self._ended:
                self._unsent.append(frame)
                self._unsent_bytes += len(frame)
                if self._unsent_bytes > MAX_UNSENT_BYTES:
                    self._end()
                self._wake()
            return not self._ended

    def close(self) -> None:
        """Close the connection, at once. Idempotent."""
        with self._changed:
            self._end()
            self._changed.notify()

    def _send_now(self, frame: memoryview) -> int:
        """The number of bytes that the socket took."""
        try:
            return self._socket.send(frame, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            self._end()
            return 0

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="turnpike-frames", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._unsent and not self._ended:
                    self._changed.wait()
                if self._ended:
                    return
                frame = self._unsent[0]
            try:
                sent = self._socket.send(frame, socket.MSG_NOSIGNAL)
            except OSError:
                self.close()
                return
            with self._changed:
                self._unsent_bytes -= sent
                if sent < len(frame):
                    self._unsent[0] = frame[sent:]
                else:
                    self._unsent.popleft()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._unsent.clear()
            with suppress(OSError):  # the other side was first
                self._socket.shutdown(socket.SHUT_RDWR)


class FrameReader:
    """Cuts a byte stream into the payloads of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete with these bytes.

        Raises:
            ConnectionEnded: a frame is of another version, or too long.
        """
        self._buffer += data
        payloads, start = [], 0
        while len(self._buffer) - start >= _HEADER.size:
            length, version = _HEADER.unpack_from(self._buffer, start)
            if version != VERSION or length > MAX_FRAME_BYTES:
                raise ConnectionEnded(f"a frame of version {version} and {length} bytes; version {VERSION} is spoken")
            end = start + _HEADER.size + length
            if len(self._buffer) < end:
                break
            payloads.append(bytes(memoryview(self._buffer)[start + _HEADER.size : end]))
            start = end
        del self._buffer[:start]
        return payloads


def read_first(connection: socket.socket, reader: FrameReader) -> list[bytes]:
    """The payloads that arrive first: at least one.

    Raises:
        ConnectionEnded: there are none.
    """
    while not (payloads := receive(connection, reader)):
        pass
    return payloads


def receive(connection: socket.socket, reader: FrameReader) -> list[bytes]:
    """The payloads that arrive next; blocks until there are bytes.

    Raises:
        ConnectionEnded: there will be none any more.
    """
    try:
        data = connection.recv(_READ_BYTES)
    except OSError as error:
        raise ConnectionEnded(f"the connection is lost: {error}") from error
    if not data:
        raise ConnectionEnded("the other side has closed the connection")
    return reader.feed(data)


async def received(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The payloads of a stream, until it ends.

    Raises:
        ConnectionEnded: it does not end with a frame, or is broken.
    """
    reader = FrameReader()
    try:
        while data := await stream.read(_READ_BYTES):
            for payload in reader.feed(data):
                yield payload
    except OSError as error:
        raise ConnectionEnded(f"the connection is lost: {error}") from error
