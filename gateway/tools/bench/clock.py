"""A clock that tests can replace."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    now_s: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep

    async def until(self, at_s: float) -> None:
        left_s = at_s - self.now_s()
        if left_s > 0:
            await self.sleep(left_s)
