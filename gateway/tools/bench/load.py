"""When requests are sent.

An open loop sends at times drawn beforehand, whatever has become of the requests before: users do not wait for one
another, and a server that slows down must not slow its load down with it. A closed loop keeps a number under way: it
measures the most that a server does, and says nothing of what its users wait.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from gateway.tools.bench.clock import Clock

Ask = Callable[[float], Awaitable[None]]
"""Does one request, due at a time of the clock."""


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Arrivals of a Poisson process."""

    rate_per_s: float

    def __str__(self) -> str:
        return f"{self.rate_per_s:g} requests/s"

    async def run(self, ask: Ask, clock: Clock, seconds: float, rng: random.Random) -> None:
        began_s = clock.now_s()
        async with asyncio.TaskGroup() as tasks:
            for at_s in poisson_arrivals(self.rate_per_s, seconds, rng):
                await clock.until(began_s + at_s)
                tasks.create_task(_awaited(ask, began_s + at_s))


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many under way at any time; a request is due when the one before it has ended."""

    concurrency: int

    def __str__(self) -> str:
        return f"{self.concurrency} at a time"

    async def run(self, ask: Ask, clock: Clock, seconds: float, rng: random.Random) -> None:
        end_s = clock.now_s() + seconds

        async def one() -> None:
            while (now_s := clock.now_s()) < end_s:
                await ask(now_s)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.concurrency):
                tasks.create_task(one())


Load = OpenLoop | ClosedLoop


def poisson_arrivals(rate_per_s: float, seconds: float, rng: random.Random) -> Iterator[float]:
    """Times from 0 to before `seconds`."""
    at_s = rng.expovariate(rate_per_s)
    while at_s < seconds:
        yield at_s
        at_s += rng.expovariate(rate_per_s)


async def _awaited(ask: Ask, due_s: float) -> None:
    await ask(due_s)
