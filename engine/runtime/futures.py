"""Awaiting futures of other threads on the event loop."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def outcome_of(future: "Future[T]") -> T:
    """The result or exception of `future`. Cancelling the waiter does not cancel the future, and an exception that
    nothing awaits any more is not reported. (With `asyncio.shield` alone the loop reports it as never retrieved.)"""
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_fetched)
    return await asyncio.shield(waiting)


def _fetched(waiting: "asyncio.Future[T]") -> None:
    if not waiting.cancelled():
        waiting.exception()
