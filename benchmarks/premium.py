"""Premium's first token under a standard flood, on a real model: `python -m benchmarks.premium`.

Premium requests come at random, one at a time on average, first alone and then while a standard tenant keeps four times
as many requests in the engine as it has sequence slots. Beside it stands the same flood with one class and one tenant:
first come, first served.
"""

import argparse
import asyncio
import random
import time
from contextlib import aclosing, suppress

from benchmarks.limits import measured_limits, print_limits
from benchmarks.traffic import make_jobs, percentile
from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.models.catalog import fetch
from engine.request import PREMIUM, STANDARD, ServiceClass
from gateway.settings import Settings

SLOTS = 16
FLOOD = 4 * SLOTS
PREMIUM_OUTPUT_TOKENS = 8


async def _first_token_ms(engine: Engine, prompt: list[int], service_class: ServiceClass, tenant: str) -> float:
    params = SamplingParams(temperature=0, max_tokens=PREMIUM_OUTPUT_TOKENS, ignore_eos=True)
    started, first = time.perf_counter(), 0.0
    async for delta in engine.stream("model", prompt, params, tenant=tenant, service_class=service_class):
        if delta.token_ids:
            first = first or time.perf_counter()
    return (first - started) * 1e3


async def _premium(engine: Engine, count: int, service_class: ServiceClass, tenant: str = "premium") -> list[float]:
    """TTFT of `count` requests that arrive with random pauses, each after the one before has ended."""
    rng = random.Random(1)
    waits = []
    for job in make_jobs(count, engine.models["model"].vocab_size, seed=5):
        await asyncio.sleep(rng.expovariate(1 / 0.1))
        waits.append(await _first_token_ms(engine, job.prompt, service_class, tenant))
    return waits


async def _flooder(engine: Engine, seed: int) -> None:
    """One of the flood's places: a new request as soon as the last has ended."""
    while True:
        for job in make_jobs(50, engine.models["model"].vocab_size, seed=seed):
            params = SamplingParams(temperature=0, max_tokens=job.output_tokens, ignore_eos=True)
            stream = engine.stream("model", job.prompt, params, tenant="flood", service_class=STANDARD)
            async with aclosing(stream) as deltas:
                async for _ in deltas:
                    pass


async def _under_flood(engine: Engine, count: int, service_class: ServiceClass, tenant: str = "premium") -> list[float]:
    flood = [asyncio.create_task(_flooder(engine, 100 + place)) for place in range(FLOOD)]
    await asyncio.sleep(5)
    try:
        return await _premium(engine, count, service_class, tenant)
    finally:
        for task in flood:
            task.cancel()
        for task in flood:
            with suppress(asyncio.CancelledError):
                await task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100, help="premium requests in each run")
    count = parser.parse_args().requests
    print_limits(measured_limits())
    config = EngineConfig(scheduler=SchedulerConfig(max_running=SLOTS), kv_cache_bytes=256 << 20)
    engine = Engine.load({"model": fetch("smollm2", Settings().models_dir)}, config)
    print(f"SmolLM2-135M, {SLOTS} slots, a flood of {FLOOD} standard requests, {count} premium requests a run")
    with engine:
        asyncio.run(_premium(engine, 5, PREMIUM))
        runs = {
            "premium alone": asyncio.run(_premium(engine, count, PREMIUM)),
            "premium under the flood": asyncio.run(_under_flood(engine, count, PREMIUM)),
            "first come, first served": asyncio.run(_under_flood(engine, max(count // 10, 5), STANDARD, "flood")),
        }
    alone = runs["premium alone"]
    for name, waits in runs.items():
        figures = [f"p{share} {percentile(waits, share / 100):7.0f} ms" for share in (50, 95, 99)]
        ratio = percentile(waits, 0.99) / percentile(alone, 0.99)
        print(f"  {name:>24}  {'  '.join(figures)}  p99 over alone {ratio:6.2f}  (n = {len(waits)})")


if __name__ == "__main__":
    main()
