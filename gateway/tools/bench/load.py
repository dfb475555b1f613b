"""Schedules requests.

An open loop sends at random times that are independent of responses: users do not wait for each other, and a slow
server must not reduce its load. A closed loop keeps a number of requests running: it measures maximum throughput, not
latency.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from gateway.tools.bench.clock import Clock

Ask = Callable[[float], Awaitable[None]]
"""Sends one request that is due at a time of the clock."""


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests at the arrival times of a Poisson process."""

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
    """`concurrency` requests at any time; a request is due when the previous one ends."""

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
    """Arrival times in [0, `seconds`)."""
    at_s = rng.expovariate(rate_per_s)
    while at_s < seconds:
        yield at_s
        at_s += rng.expovariate(rate_per_s)


async def _awaited(ask: Ask, due_s: float) -> None:
    await ask(due_s)
