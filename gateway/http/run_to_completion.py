"""The end of an answer that is sent as a whole: it is billed, and then it is sent."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Carry `work` to its end, though the caller be cancelled once meanwhile, which is then forgotten.

    A shutdown's deadline that falls between billing an answer and sending it would have a client pay for what it does
    not get. What is left to do there takes milliseconds.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
