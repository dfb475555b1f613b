"""Premium's first token under a standard flood, on a real model: `python -m benchmarks.premium`.

Premium requests come at random, one at a time on average, alone and while a standard tenant keeps four times as many
requests in the engine as it has sequence slots. The two take turns, each round on the same premium requests, so that
neither has the quieter machine. Compared with the same flood with classes off, one class and one tenant: first
come, first served. There premium requests come once a second whatever has become of those before, or few would ever be
measured. Bound: premium's p99 under the flood at most 1.5 times that alone.
"""

import argparse
import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from benchmarks.intervals import bootstrap_quantile_ratio, quantile
from benchmarks.limits import measured_limits, print_limits
from benchmarks.traffic import Job, make_jobs
from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.catalog.catalog import fetch
from engine.request import PREMIUM, STANDARD, ServiceClass
from gateway.config.settings import Settings

BOUND = 1.5
SLOTS = 16
FLOOD = 4 * SLOTS
FILL_S = 5.0
"""The flood is under way for so long before the first premium request comes."""
PREMIUM_OUTPUT_TOKENS = 8
PAUSE_S = 0.1
ONE_CLASS = ServiceClass("one", 0)


async def _first_token_ms(engine: Engine, prompt: list[int], service_class: ServiceClass, tenant: str) -> float:
    params = SamplingParams(temperature=0, max_tokens=PREMIUM_OUTPUT_TOKENS, ignore_eos=True)
    started, first = time.perf_counter(), 0.0
    async for delta in engine.stream("model", prompt, params, tenant=tenant, service_class=service_class):
        if delta.token_ids:
            first = first or time.perf_counter()
    return (first - started) * 1e3


async def _premium(engine: Engine, jobs: list[Job], seed: int) -> list[float]:
    """TTFT of requests that arrive with random pauses, each after the one before has ended."""
    rng = random.Random(seed)
    waits = []
    for job in jobs:
        await asyncio.sleep(rng.expovariate(1 / PAUSE_S))
        waits.append(await _first_token_ms(engine, job.prompt, PREMIUM, "premium"))
    return waits


async def _flooder(engine: Engine, service_class: ServiceClass, seed: int) -> None:
    """One of the flood's places: a new request as soon as the last has ended."""
    while True:
        for job in make_jobs(50, engine.models["model"].vocab_size, seed=seed):
            params = SamplingParams(temperature=0, max_tokens=job.output_tokens, ignore_eos=True)
            stream = engine.stream("model", job.prompt, params, tenant="flood", service_class=service_class)
            async with aclosing(stream) as deltas:
                async for _ in deltas:
                    pass


@asynccontextmanager
async def _flood(engine: Engine, service_class: ServiceClass, seed: int) -> AsyncIterator[None]:
    flooders = [asyncio.create_task(_flooder(engine, service_class, 1000 * seed + place)) for place in range(FLOOD)]
    await asyncio.sleep(FILL_S)
    try:
        yield
    finally:
        for task in flooders:
            task.cancel()
        for task in flooders:
            with suppress(asyncio.CancelledError):
                await task


async def with_classes(engine: Engine, rounds: int, count: int) -> tuple[list[float], list[float]]:
    """TTFT of premium alone, and under the flood."""
    alone: list[float] = []
    flooded: list[float] = []
    vocab_size = engine.models["model"].vocab_size
    await _premium(engine, make_jobs(5, vocab_size, seed=99), seed=99)
    for seed in range(rounds):
        jobs = make_jobs(count, vocab_size, seed=seed)
        for under_flood in (False, True) if seed % 2 == 0 else (True, False):
            if under_flood:
                async with _flood(engine, STANDARD, seed + 1):
                    flooded += await _premium(engine, jobs, seed)
            else:
                alone += await _premium(engine, jobs, seed)
    return alone, flooded


async def without_classes(engine: Engine, count: int) -> list[float]:
    """TTFT of the same kind of requests, one a second, in the line with all others."""
    async with _flood(engine, ONE_CLASS, 1), asyncio.TaskGroup() as tasks:
        asked = []
        for job in make_jobs(count, engine.models["model"].vocab_size, seed=0):
            asked.append(tasks.create_task(_first_token_ms(engine, job.prompt, ONE_CLASS, "flood")))
            await asyncio.sleep(1)
        return [await each for each in asked]


def _engine(path: Path, classes: tuple[ServiceClass, ...]) -> Engine:
    config = EngineConfig(scheduler=SchedulerConfig(max_running=SLOTS, classes=classes), kv_cache_bytes=256 << 20)
    return Engine.load({"model": path}, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="alone and under the flood, in turns")
    parser.add_argument("--requests", type=int, default=50, help="premium requests in each run of a round")
    parser.add_argument("--off-requests", type=int, default=30, help="in the one run with classes off")
    options = parser.parse_args()
    print_limits(measured_limits())
    path = fetch("smollm2", Settings().models_dir)
    print(f"SmolLM2-135M, {SLOTS} slots, a flood of {FLOOD} standard requests; in brackets 95 % intervals")
    with _engine(path, (PREMIUM, STANDARD)) as engine:
        alone, flooded = asyncio.run(with_classes(engine, options.rounds, options.requests))
    with _engine(path, (ONE_CLASS,)) as engine:
        off = asyncio.run(without_classes(engine, options.off_requests))
    arms = {"premium alone": alone, "premium under the flood": flooded, "the same flood, classes off": off}
    for name, waits in arms.items():
        figures = "  ".join(f"p{share} {quantile(waits, share / 100):.0f} ms" for share in (50, 95, 99))
        print(f"  {name:>27}  {figures}  (n = {len(waits)})")
    print(f"p99 under the flood over alone {bootstrap_quantile_ratio(flooded, alone, 0.99):.2f} (at most {BOUND})")
    print(f"p50 under the flood over alone {bootstrap_quantile_ratio(flooded, alone, 0.5):.2f}")
    print(f"p99 with classes off over alone {bootstrap_quantile_ratio(off, alone, 0.99):.1f}")


if __name__ == "__main__":
    main()
