"""Protects the end of a response that is not streamed: billing it and sending it."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end and suppress one cancellation of the caller.

    A shutdown's deadline between billing a response and sending it would bill a client for a response that it does not
    receive. The remaining work takes milliseconds.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
