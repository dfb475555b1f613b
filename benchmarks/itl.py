"""The time between tokens during a long prefill: `python -m benchmarks.itl` (under three minutes).

SmolLM2 on the processor: 1, 8 and 32 streams decode, alone, and then with a prompt of 4,000 tokens of another
request, with the target for the time between tokens off and on. The gaps of all streams, in milliseconds: p50, p99 and
the longest; and how fast the prompt is computed, over the rate with the target off.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.catalog.catalog import fetch
from engine.config import EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.request import STANDARD, SamplingParams
from gateway.config.settings import Settings

MODEL = "smollm2"
STREAMS = (1, 8, 32)
PROMPT_TOKENS = 4000
TARGET_MS = 100
ALONE_S = 3.0


@dataclass(frozen=True, slots=True)
class Gaps:
    """Milliseconds. `prefill_tokens_per_s` is of the prompts that run with the streams; 0 without."""

    p50: float
    p99: float
    longest: float
    prefill_tokens_per_s: float = 0.0

    @classmethod
    def of(cls, gaps_s: Sequence[float], prefill_tokens_per_s: float = 0.0) -> "Gaps":
        ordered = sorted(1e3 * gap for gap in gaps_s)
        p50, p99 = (ordered[int(part * len(ordered))] for part in (0.5, 0.99))
        return cls(p50, p99, ordered[-1], prefill_tokens_per_s)

    def __str__(self) -> str:
        return f"{self.p50:.1f} | {self.p99:.0f} | {self.longest:.0f}"


class Streams:
    """`count` endless streams and the arrival times of their tokens."""

    def __init__(self, engine: Engine, count: int) -> None:
        self._engine = engine
        self._latest: dict[int, float] = {}
        self.gaps_s: list[float] = []
        self._tasks = [asyncio.create_task(self._read(number)) for number in range(count)]

    async def decoding(self) -> None:
        """Until all have their first tokens."""
        while len(self._latest) < len(self._tasks):
            await asyncio.sleep(0.01)
        self.gaps_s.clear()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _read(self, number: int) -> None:
        prompt = [1000 + number, *range(2000, 2030)]
        params = SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True)
        async for delta in self._engine.stream(MODEL, prompt, params, tenant=f"reader {number}"):
            now = time.perf_counter()
            if delta.token_ids and number in self._latest:
                self.gaps_s.append(now - self._latest[number])
            self._latest[number] = now


async def measure(engine: Engine, count: int, prompts: int, seed: int) -> tuple[Gaps, Gaps]:
    """Inter-token latencies of `count` streams: alone, then while `prompts` prompts are prefilled one after another."""
    streams = Streams(engine, count)
    await streams.decoding()
    await asyncio.sleep(ALONE_S)
    alone = Gaps.of(streams.gaps_s)
    streams.gaps_s.clear()
    begun = time.perf_counter()
    for number in range(prompts):
        prompt = [(seed + number) * 31 % 30_000, *((7 * each + number) % 40_000 for each in range(PROMPT_TOKENS - 1))]
        async for _ in engine.stream(MODEL, prompt, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)):
            pass
    beside = Gaps.of(streams.gaps_s, prompts * PROMPT_TOKENS / (time.perf_counter() - begun))
    await streams.stop()
    return alone, beside


def load(path: Path, target_ms: int | None) -> Engine:
    scheduler = SchedulerConfig(classes=(replace(STANDARD, step_share=1.0, itl_target_ms=target_ms),))
    config = EngineConfig(device="cpu", kv_cache_bytes=1 << 30, scheduler=scheduler, prefix_cache=False)
    return Engine.load({MODEL: path}, config)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="The time between tokens beside a long prompt.")
    parser.add_argument("--streams", type=int, nargs="+", default=STREAMS)
    parser.add_argument("--prompts", type=int, default=1, help="of 4,000 tokens, in turn")
    parser.add_argument("--target-ms", type=int, default=TARGET_MS)
    chosen = parser.parse_args(arguments)
    path = fetch(MODEL, Settings().models_dir)
    found: dict[bool, list[tuple[Gaps, Gaps]]] = {}
    for on in (False, True):
        with load(path, chosen.target_ms if on else None) as engine:
            runs = [measure(engine, count, chosen.prompts, 100 * on) for count in chosen.streams]
            found[on] = [asyncio.run(run) for run in runs]
    print(f"load {os.getloadavg()[0]:.1f}; target {chosen.target_ms} ms; gaps in ms: p50 | p99 | longest")
    print("| streams | alone | | | target off | | | target on | | | prefill, on / off |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for count, (alone, off), (_, on) in zip(chosen.streams, found[False], found[True], strict=True):
        ratio = on.prefill_tokens_per_s / off.prefill_tokens_per_s
        print(f"| {count} | {alone} | {off} | {on} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
