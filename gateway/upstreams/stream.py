"""The output stream of a call to an upstream: one HTTP request for each of its prompts."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from types import TracebackType
from typing import Protocol, Self

from engine.request import TextDelta, Usage
from engine.runtime.reservation import Reservation
from engine.runtime.streams import AbortListener

MAX_PENDING = 128
"""Unread deltas after which the connection is not read further, so that the server waits, too."""


class Answer(Protocol):
    """The answer to one prompt."""

    @property
    def choices(self) -> range:
        """The numbers of its choices."""

    def deltas(self) -> AsyncGenerator[Sequence[TextDelta]]:
        """Send the request and read its answer. Closing the iterator closes the connection."""
        ...

    def usage_of(self, number: int) -> Usage:
        """The usage of a choice so far."""
        ...


Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Waits for a place among the concurrent requests."""


class UpstreamStream:
    """As `gateway.generation.engine_client.OutputStream`, for one event loop.

    `on_abort` gets the usage of each choice whose last delta was not read, when the stream is left.
    """

    def __init__(
        self,
        answers: Sequence[Answer],
        slot: Slot,
        reservation: Reservation | None,
        on_abort: AbortListener | None,
    ) -> None:
        self._answers = answers
        self._slot = slot
        self._reservation = reservation
        self._on_abort = on_abort
        self._pending: list[TextDelta] = []
        self._ended: set[int] = set()
        """Choices whose last delta was read."""
        self._error: Exception | None = None
        self._failed: Exception | None = None
        self._changed = asyncio.Event()
        self._has_room = asyncio.Event()
        self._pumps: list[asyncio.Task[None]] = []
        self._live = len(answers)

    async def __aenter__(self) -> Self:
        self._has_room.set()
        self._pumps = [asyncio.create_task(self._pump(answer)) for answer in self._answers]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.wait(self._pumps)
        if self._on_abort is not None:
            for answer in self._answers:
                for number in answer.choices:
                    if number not in self._ended:
                        self._on_abort(number, answer.usage_of(number))

    async def next_batch(self) -> Sequence[TextDelta]:
        """The deltas that are ready. Those that arrived before an error come before it."""
        while not self._pending and self._failed is None and self._error is None and self._live:
            self._changed.clear()
            await self._changed.wait()
        if self._failed is not None:
            raise self._failed
        batch, self._pending = self._pending, []
        self._has_room.set()
        if not batch and self._error is not None:
            raise self._error
        self._ended.update(delta.index for delta in batch if delta.usage is not None)
        return batch

    def fail(self, error: Exception) -> None:
        """End the call: close its connections at once."""
        self._failed, self._pending = error, []
        for pump in self._pumps:
            pump.cancel()
        self._changed.set()

    async def _pump(self, answer: Answer) -> None:
        """Read one answer, as far ahead as `MAX_PENDING` allows."""
        try:
            if self._reservation is not None:
                self._reservation.release()  # nothing is awaited until it has a slot or waits for one
            async with self._slot(), aclosing(answer.deltas()) as batches:
                async for batch in batches:
                    self._pending += batch
                    self._changed.set()
                    if len(self._pending) >= MAX_PENDING:
                        self._has_room.clear()
                        await self._has_room.wait()
        except Exception as error:
            self._error = self._error or error
        finally:
            self._live -= 1
            self._changed.set()
