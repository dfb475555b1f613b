"""Runs loads in order on one server."""

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gateway.tools.bench.client import Client
from gateway.tools.bench.clock import Clock
from gateway.tools.bench.load import Load, OpenLoop
from gateway.tools.bench.prompts import Prompt
from gateway.tools.bench.recorder import Recorder
from gateway.tools.bench.report import Objective, Report, summarise

TICK_S = 0.25

Prompts = Callable[[random.Random], Iterator[Prompt]]
Watch = Callable[[Load, float, Recorder], None]
"""Callback every `TICK_S` with the seconds since the load started, and at its end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Each load lasts `warmup_s` plus the measured `seconds`."""

    loads: Sequence[Load]
    seconds: float
    warmup_s: float
    seed: int
    objective: Objective


async def run_plan(
    plan: Plan, client: Client, prompts: Prompts, clock: Clock, watch: Watch, stop: asyncio.Event
) -> list[Report]:
    """A report for each load. `stop` ends the test; the current load is reported up to then.

    Raises:
        ServerRefuses: the first request failed.
    """
    await client.prepare(next(prompts(random.Random(f"{plan.seed}/first"))))
    reports = []
    for number in range(len(plan.loads)):
        if stop.is_set():
            break
        reports.append(await _run_load(plan, number, client, prompts, clock, watch, stop))
    return reports


async def _run_load(
    plan: Plan, number: int, client: Client, prompts: Prompts, clock: Clock, watch: Watch, stop: asyncio.Event
) -> Report:
    # Of their own, so that the times do not hang on what is asked, nor a load on those before it.
    drawn = prompts(random.Random(f"{plan.seed}/{number}/prompts"))
    times = random.Random(f"{plan.seed}/{number}/times")
    load, record, began_s = plan.loads[number], Recorder(), clock.now_s()

    async def ask(due_s: float) -> None:
        await client.ask(next(drawn), due_s, record)

    async def watching() -> None:
        while True:
            watch(load, clock.now_s() - began_s, record)
            await clock.sleep(TICK_S)

    watcher = asyncio.create_task(watching())
    running = asyncio.create_task(load.run(ask, clock, plan.warmup_s + plan.seconds, times))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        # A load whose answers are all there before its time is over was measured for all of it.
        over_s = clock.now_s() if stop.is_set() else math.inf
    finally:
        for task in (running, watcher, stopping):
            if not task.done():
                task.cancel()
        for task in (watcher, stopping):
            with suppress(asyncio.CancelledError):
                await task
    with suppress(asyncio.CancelledError):
        await running
    watch(load, clock.now_s() - began_s, record)
    from_s = began_s + plan.warmup_s
    window_s = (from_s, min(from_s + plan.seconds, over_s))
    return summarise(str(load), record.outcomes, window_s, plan.objective, scheduled=isinstance(load, OpenLoop))
