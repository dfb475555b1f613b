"""The engine streams of one request read as one, and given up when the client goes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from starlette.types import Receive

from engine.request import TextDelta
from engine.runtime.notify import Wakeup
from gateway.http.bounds import MAX_PENDING_TOKENS, MAX_WRITTEN_TOKENS
from gateway.http.errors import ClientGone


class ChoiceDelta(NamedTuple):
    """`choice` is the index that the client sees: prompt * n + the delta's own."""

    choice: int
    delta: TextDelta


class DeltaStream:
    """Deltas of all prompts in the order they are ready, many at a time where many are ready.

    One task pumps each engine stream. Invariants: at most `MAX_PENDING_TOKENS` (and one delta more for each pump) are
    held, the pumps wait while there are as many, and then the engine stands still; after `cancel` every engine stream
    is closed. One reader.
    """

    def __init__(self, streams: Sequence[AsyncGenerator[TextDelta]], choices_each: int) -> None:
        self._pending: list[ChoiceDelta] = []
        self._pending_tokens = 0
        self._ready = Wakeup()
        self._room = asyncio.Event()
        self._failure: Exception | None = None
        self._live = len(streams)
        self._pumps = [
            asyncio.create_task(self._pump(stream, position * choices_each)) for position, stream in enumerate(streams)
        ]

    async def next_batch(self) -> list[ChoiceDelta]:
        """What is ready, at least one delta and beyond that at most `MAX_WRITTEN_TOKENS`; empty once, at the end.

        Raises:
            ClientGone: `abandon` was called.
            Exception: the first failure of an engine stream, after the deltas that came before it.
        """
        while not self._pending and self._live and self._failure is None:
            await self._ready.wait()
        batch = self._take()
        if self._pending_tokens < MAX_PENDING_TOKENS:
            self._room.set()
        if not batch and self._failure is not None:
            raise self._failure
        return batch

    def check_client(self) -> None:
        """Raises ClientGone where the client has gone: what was to be sent to it since was not."""
        if isinstance(self._failure, ClientGone):
            raise self._failure

    def abandon(self) -> None:
        """Abort at once: nobody is there to read."""
        self._fail(ClientGone())
        self._pending, self._pending_tokens = [], 0

    def cancel(self) -> list[asyncio.Task[None]]:
        """Close every engine stream. The tasks that do it, to be waited for."""
        for pump in self._pumps:
            pump.cancel()
        return self._pumps

    def _take(self) -> list[ChoiceDelta]:
        pending = self._pending
        if self._pending_tokens <= MAX_WRITTEN_TOKENS:
            self._pending, self._pending_tokens = [], 0
            return pending
        count = tokens = 0
        while not count or tokens + _size(pending[count].delta) <= MAX_WRITTEN_TOKENS:
            tokens += _size(pending[count].delta)
            count += 1
        self._pending = pending[count:]
        self._pending_tokens -= tokens
        return pending[:count]

    async def _pump(self, stream: AsyncGenerator[TextDelta], first_choice: int) -> None:
        try:
            async for delta in stream:
                if not self._pending:
                    self._ready.wake()
                self._pending.append(ChoiceDelta(first_choice + delta.index, delta))
                self._pending_tokens += _size(delta)
                if self._pending_tokens >= MAX_PENDING_TOKENS:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:
            self._fail(error)
        finally:
            await stream.aclose()
            self._live -= 1
            self._ready.wake()

    def _fail(self, failure: Exception) -> None:
        """The first failure counts, and takes the request's other streams with it."""
        if self._failure is None:
            self._failure = failure
            current = asyncio.current_task()
            for pump in self._pumps:
                if pump is not current:
                    pump.cancel()
        self._ready.wake()


def _size(delta: TextDelta) -> int:
    """In tokens; a delta without any is something all the same."""
    return len(delta.token_ids) or 1


@asynccontextmanager
async def reading(
    streams: Sequence[AsyncGenerator[TextDelta]], choices_each: int, receive: Receive
) -> AsyncIterator[DeltaStream]:
    """Read engine streams for the client behind `receive`, as long as it is there. None outlives the block."""
    deltas = DeltaStream(streams, choices_each)
    watcher = asyncio.create_task(_watch(receive, deltas))
    try:
        yield deltas
    finally:
        watcher.cancel()
        await asyncio.wait([watcher, *deltas.cancel()])


async def _watch(receive: Receive, deltas: DeltaStream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    deltas.abandon()
