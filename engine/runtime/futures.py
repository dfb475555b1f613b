"""Waiting on the event loop for what another thread makes."""

import asyncio
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def outcome_of(future: "Future[T]") -> T:
    """Its result or its exception, without a hand on it: a waiter that is cancelled cancels nothing, and what becomes
    of the future then is nobody's error. (`asyncio.shield` alone has the loop report that as never fetched.)
    """
    waiting = asyncio.wrap_future(future)
    waiting.add_done_callback(_fetched)
    return await asyncio.shield(waiting)


def _fetched(waiting: "asyncio.Future[T]") -> None:
    if not waiting.cancelled():
        waiting.exception()
