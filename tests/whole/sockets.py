"""Socket pairs between simulated processes: bytes arrive late, in pieces, and have little room on their way."""

import itertools
import select as real_select
import socket as real_socket
from collections import deque
from random import Random
from types import TracebackType
from typing import Self

from tests.whole import threads
from tests.whole.clock import VirtualClock

_numbers = itertools.count(1000)


class Pipe:
    """One direction. Bytes arrive in order, each `delay_us` or so after it was sent; `room`: bytes on their way."""

    def __init__(self, clock: VirtualClock, random: Random, delay_us: int, room: int) -> None:
        self._clock = clock
        self._random = random
        self._delay_us = delay_us
        self._room = room
        self._changed = threads.Condition()
        self._chunks: deque[tuple[int, bytes]] = deque()
        """With the times at which they arrive."""
        self._bytes = 0
        self._last_ns = 0
        self._is_shut = False

    def send(self, data: memoryview, *, waits: bool) -> int:
        """The number of bytes that there was room for.

        Raises:
            BlockingIOError: there was none, and this does not wait.
            BrokenPipeError: one end is closed.
        """
        with self._changed:
            while not self._is_shut and self._bytes >= self._room:
                if not waits:
                    raise BlockingIOError
                self._changed.wait()
            if self._is_shut:
                raise BrokenPipeError
            taken = bytes(data[: self._room - self._bytes])
            delay_ns = int(1000 * self._delay_us * self._random.choice((0.2, 1, 1, 4)) * self._random.random())
            self._last_ns = max(self._last_ns, self._clock.now_ns + delay_ns)
            self._chunks.append((self._last_ns, taken))
            self._bytes += len(taken)
            self._changed.notify_all()
            return len(taken)

    def receive(self, most: int) -> bytes:
        """Bytes that have arrived; waits for the first. None: there will be none."""
        with self._changed:
            self._await(None)
            data = bytearray()
            while self._chunks and self._chunks[0][0] <= self._clock.now_ns and len(data) < most:
                data += self._chunks.popleft()[1]
            kept = self._random.randrange(1, len(data)) if len(data) > 1 and self._random.random() < 0.2 else len(data)
            kept = min(kept, most)
            if data[kept:]:
                self._chunks.appendleft((self._clock.now_ns, bytes(data[kept:])))
            self._bytes -= kept
            self._changed.notify_all()
            return bytes(data[:kept])

    def wait_readable(self, seconds: float) -> bool:
        """Whether there is something to receive within this time, or the end."""
        with self._changed:
            return self._await(self._clock.now_ns + int(seconds * 1e9))

    def shut(self) -> None:
        """No more is sent. What is on its way arrives."""
        with self._changed:
            self._is_shut = True
            self._changed.notify_all()

    def cut(self, share: float) -> None:
        """The sender was killed: of its bytes on their way, this share arrives."""
        with self._changed:
            arrived = [chunk for chunk in self._chunks if chunk[0] <= self._clock.now_ns]
            late = [chunk for chunk in self._chunks if chunk[0] > self._clock.now_ns]
            room = int(share * sum(len(data) for _, data in late))
            for at_ns, data in late:
                if room > 0:
                    arrived.append((at_ns, data[:room]))
                    room -= len(data)
            self._chunks = deque(arrived)
            self._bytes = sum(len(data) for _, data in arrived)
        self.shut()

    def _await(self, until_ns: int | None) -> bool:
        """Wait for the first bytes or the end. False where the time comes before."""
        while True:
            now_ns = self._clock.now_ns
            at_ns = self._chunks[0][0] if self._chunks else now_ns if self._is_shut else None
            if at_ns is not None and at_ns <= now_ns:
                return True
            if until_ns is not None and until_ns <= now_ns:
                return False
            ends = [each for each in (at_ns, until_ns) if each is not None]
            self._changed.wait((min(ends) - now_ns) / 1e9 if ends else None)


class Socket:
    """One end of a pair, as `socket.socket`. An end that a process has inherited is the process's."""

    def __init__(self, incoming: Pipe, outgoing: Pipe) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self.is_inherited = False
        self._number = next(_numbers)

    def fileno(self) -> int:
        return self._number

    def send(self, data: memoryview, flags: int = 0) -> int:
        return self.outgoing.send(data, waits=not flags & real_socket.MSG_DONTWAIT)

    def recv(self, most: int) -> bytes:
        return self.incoming.receive(most)

    def shutdown(self, how: int) -> None:
        """Both directions. What has been sent to this end can be received still."""
        self.outgoing.shut()
        self.incoming.shut()

    def close(self) -> None:
        if not self.is_inherited:
            self.shutdown(real_socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Poll:
    """As `select.poll()`, of one socket."""

    def __init__(self) -> None:
        self._socket: Socket | None = None

    def register(self, socket: Socket, events: int) -> None:
        assert events == real_select.POLLIN, "only what can be received is waited for"
        self._socket = socket

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        assert self._socket is not None, "nothing is registered"
        if self._socket.incoming.wait_readable(timeout_ms / 1000):
            return [(self._socket.fileno(), real_select.POLLIN)]
        return []


def pair(clock: VirtualClock, random: Random, delay_us: int, room: int) -> tuple[Socket, Socket]:
    """Two connected ends."""
    there, back = (Pipe(clock, random, delay_us, room) for _ in range(2))
    return Socket(back, there), Socket(there, back)
