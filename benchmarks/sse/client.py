"""Asks in a closed loop over plain sockets, as cheaply as Python can: the generator must not be what is measured."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

_END_OF_CHUNKS = b"0\r\n\r\n"
_LENGTH = b"content-length: "


@dataclass(frozen=True, slots=True)
class Target:
    """Where to ask, and what."""

    port: int
    key: str
    path: str
    body: bytes

    @property
    def request(self) -> bytes:
        head = (
            f"POST {self.path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {self.key}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


@dataclass(slots=True)
class Asked:
    """Results of many requests: their times from the first byte sent to the last one received, and those to the
    first byte received, in ms; and all that `counted` stood for in the answers."""

    seconds: float = 0.0
    first_ms: list[float] = field(default_factory=list)
    whole_ms: list[float] = field(default_factory=list)
    counted: int = 0

    @property
    def per_second(self) -> float:
        return len(self.whole_ms) / self.seconds


class _Asker(asyncio.Protocol):
    """One connection: the next request goes out when the last answer is there."""

    def __init__(self, request: bytes, mark: bytes, asked: Asked, until_s: float) -> None:
        self._request, self._mark = request, mark
        self._asked, self._until_s = asked, until_s
        self._sent_s = self._first_s = 0.0
        self._left: int | None = None
        """Bytes of a body whose length is known."""
        self._tail = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(exc or ConnectionError("the server closed a connection under a request"))

    def data_received(self, data: bytes) -> None:
        if not self._first_s:
            self._first_s = time.perf_counter()
            self._begin(data)
        elif self._left is not None:
            self._left -= len(data)
        self._asked.counted += data.count(self._mark)
        self._tail = (self._tail + data)[-len(_END_OF_CHUNKS) :]
        if self._left == 0 or (self._left is None and self._tail == _END_OF_CHUNKS):
            self._end()

    def _ask(self) -> None:
        self._sent_s, self._first_s, self._left, self._tail = time.perf_counter(), 0.0, None, b""
        self._transport.write(self._request)

    def _begin(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 200 "):
            self.done.set_exception(RuntimeError(f"not answered: {data[:500]!r}"))
            return
        head, _, body = data.partition(b"\r\n\r\n")
        found = head.lower().find(_LENGTH)
        if found >= 0:
            length = head[found + len(_LENGTH) :].split(b"\r\n", 1)[0]
            self._left = int(length) - len(body)

    def _end(self) -> None:
        now_s = time.perf_counter()
        self._asked.first_ms.append((self._first_s - self._sent_s) * 1e3)
        self._asked.whole_ms.append((now_s - self._sent_s) * 1e3)
        if now_s < self._until_s:
            self._ask()
        elif not self.done.done():
            self.done.set_result(None)
            self._transport.close()


async def ask(target: Target, concurrency: int, seconds: float, mark: bytes = b"data: {") -> Asked:
    """`concurrency` requests at a time, for so long and until those under way have ended. `mark` is counted.

    Raises:
        RuntimeError: one was refused.
        ConnectionError: the server closed a connection.
    """
    loop, asked, began_s = asyncio.get_running_loop(), Asked(), time.perf_counter()
    askers: Sequence[_Asker] = [
        (
            await loop.create_connection(
                lambda: _Asker(target.request, mark, asked, began_s + seconds), "127.0.0.1", target.port
            )
        )[1]
        for _ in range(concurrency)
    ]
    await asyncio.gather(*(asker.done for asker in askers))
    asked.seconds = time.perf_counter() - began_s
    return asked
