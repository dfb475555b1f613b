"""Frames between rank 0 and another rank, over a socket: a call with its words, and what it carries besides."""

import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from kernels.arrays import Ints

_HEAD = struct.Struct("<4q")


class Call(IntEnum):
    """Of rank 0: `JOIN`, when all processes have started; `LOAD`; methods of `RankModel`; and `PING`. Of the others:
    `READY` after their start and each load, `FAILED` with a message, and `PONG`, also during a step."""

    LOAD = 1
    ALLOCATE_KV = 2
    ALLOCATE_STATES = 3
    ALLOCATE_ADAPTERS = 4
    PUT_ADAPTER = 5
    CLEAR_BLOCKS = 6
    COPY_BLOCKS = 7
    EMBED = 8
    FORWARD = 9
    SETTLE_DRAFTS = 10
    LOGITS = 11
    READY = 12
    FAILED = 13
    PING = 14
    PONG = 15
    DRAW = 16
    JOIN = 17
    DRAW_HELD = 18
    LOGITS_HELD = 19


class ChannelEnded(Exception):
    """The other side has closed the channel, or its process has ended."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A call. model: its number. words: int64. data: bytes that are not words."""

    call: Call
    model: int = 0
    words: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    data: bytes = b""

    def encoded(self) -> bytes:
        return b"".join(
            (_HEAD.pack(self.call, self.model, len(self.words), len(self.data)), self.words.tobytes(), self.data)
        )


class Channel:
    """One side of a connection. Frames are received by one thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, encoded: bytes) -> None:
        """Send an encoded frame. On any thread.

        Raises:
            ChannelEnded: the other side has gone, or has read nothing for the connection's timeout.
        """
        try:
            with self._sending:
                self._connection.sendall(encoded)
        except OSError as error:
            raise ChannelEnded(str(error)) from error

    def try_send(self, encoded: bytes) -> None:
        """Send a short frame if it can be sent at once."""
        with suppress(OSError):
            self._connection.send(encoded, socket.MSG_DONTWAIT)

    def receive(self) -> Frame:
        """Wait for a frame.

        Raises:
            ChannelEnded: the other side has gone.
        """
        call, model, words, data = _HEAD.unpack(self._exactly(_HEAD.size))
        numbers = np.frombuffer(self._exactly(8 * words), dtype=np.int64)
        return Frame(Call(call), model, numbers, bytes(self._exactly(data)))

    def close(self) -> None:
        """End the connection, also for a thread that waits for a frame. Idempotent."""
        with suppress(OSError):  # it has ended
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, count: int) -> bytearray:
        buffer = bytearray(count)
        view, at = memoryview(buffer), 0
        while at < count:
            try:
                received = self._connection.recv_into(view[at:])
            except TimeoutError:
                continue  # the timeout is for sending
            except OSError as error:
                raise ChannelEnded(str(error)) from error
            if not received:
                raise ChannelEnded("the connection has ended")
            at += received
        return buffer
