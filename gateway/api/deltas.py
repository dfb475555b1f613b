"""The engine streams of one request read as one, and given up when the client goes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from starlette.types import Receive

from engine.request import TextDelta
from gateway.api.bounds import MAX_PENDING_DELTAS, MAX_STALLED_SECONDS, MAX_WRITTEN_DELTAS
from gateway.api.errors import ClientGone


class ChoiceDelta(NamedTuple):
    """`choice` is the index that the client sees: prompt * n + the delta's own."""

    choice: int
    delta: TextDelta


class DeltaStream:
    """Deltas of all prompts in the order they are ready, many at a time where many are ready.

    One task pumps each engine stream. Invariants: at most `MAX_PENDING_DELTAS` (and one more for each pump) are
    held, the pumps wait while there are as many; after `cancel` every engine stream is closed. One reader.
    """

    def __init__(self, streams: Sequence[AsyncGenerator[TextDelta]], choices_each: int) -> None:
        self._pending: list[ChoiceDelta] = []
        self._ready = asyncio.Event()
        self._room = asyncio.Event()
        self._failure: Exception | None = None
        self._live = len(streams)
        self._pumps = [
            asyncio.create_task(self._pump(stream, position * choices_each)) for position, stream in enumerate(streams)
        ]

    async def next_batch(self) -> list[ChoiceDelta]:
        """What is ready, at least one delta and at most `MAX_WRITTEN_DELTAS`; empty once, at the end.

        Raises:
            ClientGone: `abandon` was called, or the reader has let deltas lie for `MAX_STALLED_SECONDS`.
            Exception: the first failure of an engine stream, after the deltas that came before it.
        """
        if not self._pending and self._live and self._failure is None:
            self._ready.clear()
            await self._ready.wait()
        batch, self._pending = self._pending[:MAX_WRITTEN_DELTAS], self._pending[MAX_WRITTEN_DELTAS:]
        if len(self._pending) < MAX_PENDING_DELTAS:
            self._room.set()
        if not batch and self._failure is not None:
            raise self._failure
        return batch

    def abandon(self) -> None:
        """Abort at once: nobody is there to read."""
        self._fail(ClientGone())
        self._pending = []

    def cancel(self) -> list[asyncio.Task[None]]:
        """Close every engine stream. The tasks that do it, to be waited for."""
        for pump in self._pumps:
            pump.cancel()
        return self._pumps

    async def _pump(self, stream: AsyncGenerator[TextDelta], first_choice: int) -> None:
        try:
            async for delta in stream:
                self._pending.append(ChoiceDelta(first_choice + delta.index, delta))
                self._ready.set()
                if len(self._pending) >= MAX_PENDING_DELTAS:
                    await self._wait_for_room()
        except Exception as error:
            self._fail(error)
        finally:
            await stream.aclose()
            self._live -= 1
            self._ready.set()

    async def _wait_for_room(self) -> None:
        """Raises ClientGone where the client has stopped to read. (A timer here, not around each write, is free.)"""
        self._room.clear()
        try:
            async with asyncio.timeout(MAX_STALLED_SECONDS):
                await self._room.wait()
        except TimeoutError:
            raise ClientGone from None

    def _fail(self, failure: Exception) -> None:
        """The first failure counts, and takes the request's other streams with it."""
        if self._failure is None:
            self._failure = failure
            current = asyncio.current_task()
            for pump in self._pumps:
                if pump is not current:
                    pump.cancel()
        self._ready.set()


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
