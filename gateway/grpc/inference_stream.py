"""ModelStreamInfer: many requests on one stream, each with a message for every step and a last one.

Requests run at the same time, and one that fails ends with a message that says so. A message that was handed to gRPC
counts as sent, as bytes that are handed to an HTTP connection do; each waits until the one before it is within the
client's flow control.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple

from gateway.grpc.asgi_call import AsgiCall
from gateway.grpc.call_context import Context, Metadata, write_within
from gateway.grpc.infer_formatter import failed_message
from gateway.grpc.protos import inference_pb2 as pb

MAX_REQUESTS = 64
"""Requests of one stream that run at the same time. Further ones are read when one has ended."""


class Unsent(NamedTuple):
    """A message, and the future of whether it was sent."""

    message: bytes
    done: asyncio.Future[bool]

    def settle(self, was_sent: bool) -> None:
        """No effect if the request that waits was cut off."""
        if not self.done.done():
            self.done.set_result(was_sent)


class InferStream:
    """One stream. The call's own coroutine sends all its messages: gRPC takes one at a time."""

    def __init__(
        self,
        path: str,
        metadata: Metadata,
        context: Context,
        start: Callable[[AsgiCall], "asyncio.Task[None]"],
        stall_seconds: float,
    ) -> None:
        """`start` runs a request in a task. A client that takes no message for `stall_seconds` has gone."""
        self._path = path
        self._metadata = metadata
        self._context = context
        self._start = start
        self._stall_seconds = stall_seconds
        self._unsent: asyncio.Queue[Unsent | None] = asyncio.Queue()
        self._running: set[AsgiCall] = set()
        self._slots = asyncio.Semaphore(MAX_REQUESTS)
        self._reading: asyncio.Task[None] | None = None
        self._has_read_all = False
        self._draining = False
        self._closed = False

    async def run(self, requests: AsyncIterator[pb.ModelInferRequest]) -> bool:
        """Serve until the client has sent its last request and has every answer. Returns whether it has: in a drain,
        and after a message that cannot be read, the stream ends before.

        Raises:
            CancelledError: it has cancelled, or takes no messages.
        """
        self._reading = asyncio.create_task(self._read(requests), name="gRPC stream")
        self._reading.add_done_callback(self._on_read)
        if self._draining:
            self._reading.cancel()
        try:
            while (unsent := await self._unsent.get()) is not None:
                try:
                    await write_within(self._context, unsent.message, self._stall_seconds)
                finally:
                    unsent.settle(True)
            return self._has_read_all
        finally:
            self._close()

    def drain(self) -> None:
        """Read no further request, and end when those that run have ended."""
        self._draining = True
        if self._reading is not None:
            self._reading.cancel()

    def hang_up(self) -> None:
        """Compute no more for this client."""
        for call in self._running:
            call.hang_up()

    async def _read(self, requests: AsyncIterator[pb.ModelInferRequest]) -> None:
        async for message in requests:
            await self._slots.acquire()
            call = AsgiCall(self._path, self._metadata, message, self._send)
            self._running.add(call)
            task = self._start(call)
            task.add_done_callback(lambda _, call=call, id=message.id: self._on_end(call, id))  # type: ignore[misc]

    def _on_read(self, reading: "asyncio.Task[None]") -> None:
        self._has_read_all = not reading.cancelled() and reading.exception() is None
        self._end_if_idle()

    def _on_end(self, call: AsgiCall, id: str) -> None:
        self._running.discard(call)
        if call.error is not None and not self._closed:
            message = failed_message(id, call.error, call.headers)
            self._queue(message).add_done_callback(lambda _: self._slots.release())
        else:
            self._slots.release()
        self._end_if_idle()

    async def _send(self, message: bytes) -> bool:
        return not self._closed and await self._queue(message)

    def _queue(self, message: bytes) -> asyncio.Future[bool]:
        unsent = Unsent(message, asyncio.get_running_loop().create_future())
        self._unsent.put_nowait(unsent)
        return unsent.done

    def _end_if_idle(self) -> None:
        if not self._running and self._reading is not None and self._reading.done():
            self._unsent.put_nowait(None)

    def _close(self) -> None:
        """Release the requests that wait for their messages to be sent: the client has gone, or has them all."""
        self._closed = True
        self.hang_up()
        if self._reading is not None:
            self._reading.cancel()
        with suppress(asyncio.QueueEmpty):
            while True:
                unsent = self._unsent.get_nowait()
                if unsent is not None:
                    unsent.settle(False)
