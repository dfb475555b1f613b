"""Waiting on the event loop by a clock that excludes stalls of this process.

Time is counted in ticks of the event loop; a tick that took longer because this process stalled counts as one tick. So
a process that stalls finds no answer late: the loop has polled its sockets many times before a deadline expires.
"""

import asyncio
from typing import Any

TICK_S = 0.002
"""Longest time that one tick counts for, in seconds."""
RESOLUTION_S = 0.001
"""Resolution of the loop's clock in seconds: uvloop's has whole milliseconds."""


async def wait_responsively(future: "asyncio.Future[Any]", at_most_s: float) -> float:
    """Wait until a future is done, or until the loop has run for `at_most_s` in ticks. The future is not cancelled.
    Returns the seconds that counted."""
    loop = asyncio.get_running_loop()
    passed_s = 0.0
    while not future.done() and at_most_s - passed_s > RESOLUTION_S:
        tick_s = min(TICK_S, at_most_s - passed_s)
        started = loop.time()
        await asyncio.wait((future,), timeout=tick_s)
        passed_s += min(tick_s, loop.time() - started)
    return passed_s if future.done() else at_most_s
