"""Random adapters in the engine: `python -m benchmarks.adapters [--quick] [--part NAME]`.

Throughput: output tokens/s of 20 tenants' adapters, all resident, over those of the base model alone, at 1, 8 and 32
requests at once, in rounds that alternate; of SmolLM2-135M, and of half a billion random weights. Cold: what 8 streams
of the base model lose while a new adapter is loaded every half second, against requests for resident ones, in rounds
that alternate. Zipf: 1,000 adapters and 20 slots, 16 requests at once: the share of requests whose adapter is resident,
the time to the first token, and resident memory before and after, in little KV memory. It may grow by the 512 MiB of
the cache of packed adapters.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoints import half_billion
from benchmarks.random_adapters import SETS, make_adapter
from engine.adapters.source import AdapterSource
from engine.catalog.catalog import fetch
from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import SamplingParams
from gateway.config.settings import Settings

MODEL = "model"
SMALL = "smollm2"
SLOTS = 20
REGISTERED = 1000
TOKENS = 48
LOADS, LOAD_EVERY_S = 6, 0.5
"""Cold requests of a round."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Times of one request, in seconds from its start."""

    first_s: float
    end_s: float
    tokens: int


def prompt_of(number: int) -> list[int]:
    """32 tokens, distinct for each number below 4000 / 7."""
    return [1 + (7 * number + 3 * place) % 4000 for place in range(32)]


async def ask(engine: Engine, adapter: AdapterSource | None, tenant: str, number: int, tokens: int = TOKENS) -> Answer:
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
    started_s, first_s, count = time.monotonic(), 0.0, 0
    async for delta in engine.stream(MODEL, prompt_of(number), params, tenant=tenant, adapter=adapter):
        if delta.token_ids and not count:
            first_s = time.monotonic() - started_s
        count += len(delta.token_ids)
    return Answer(first_s, time.monotonic() - started_s, count)


async def rate(engine: Engine, adapters: Sequence[AdapterSource | None], concurrency: int, requests: int) -> float:
    """Output tokens/s of a closed loop; the tenants take turns."""
    numbers = itertools.count()

    async def client() -> int:
        tokens = 0
        while (number := next(numbers)) < requests:
            owner = number % len(adapters)
            tokens += (await ask(engine, adapters[owner], f"tenant {owner}", number)).tokens
        return tokens

    started_s = time.monotonic()
    tokens = await asyncio.gather(*(client() for _ in range(concurrency)))
    return sum(tokens) / (time.monotonic() - started_s)


async def throughput(engine: Engine, adapters: Sequence[AdapterSource], rounds: int) -> None:
    plain: list[AdapterSource | None] = [None] * len(adapters)
    for concurrency in (1, 8, 32):
        requests = max(2 * concurrency, 8)
        await rate(engine, adapters, concurrency, len(adapters))  # loads them
        ratios, base = [], []
        for _ in range(rounds):
            without = await rate(engine, plain, concurrency, requests)
            ratios.append(await rate(engine, adapters, concurrency, requests) / without)
            base.append(without)
        ratio = statistics.median(ratios)
        print(
            f"  c={concurrency:<3} base {statistics.median(base):7.1f} tok/s, with adapters {ratio:.3f} of it",
            flush=True,
        )


class Steady:
    """Streams of the base model that never end, and the tokens that they have received."""

    def __init__(self, engine: Engine, streams: int) -> None:
        self.tokens = 0
        self._engine = engine
        self._tasks = [asyncio.ensure_future(self._stream(number)) for number in range(streams)]

    async def _stream(self, number: int) -> None:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=400)
        while True:
            async for delta in self._engine.stream(MODEL, prompt_of(number), params, tenant=f"tenant {number}"):
                self.tokens += len(delta.token_ids)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def cold(engine: Engine, resident: Sequence[AdapterSource], fresh: Sequence[AdapterSource], rounds: int) -> None:
    """`fresh`: adapters that have not been loaded, enough for all rounds."""
    numbers = itertools.count(1000)  # no prompt comes twice
    kinds = {"resident": itertools.cycle(resident), "cold": iter(fresh)}
    firsts: dict[str, list[float]] = {kind: [] for kind in kinds}
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    steady = Steady(engine, 8)
    await asyncio.sleep(1)
    for _ in range(rounds):
        for kind, adapters in kinds.items():
            tokens, started_s = steady.tokens, time.monotonic()
            for turn in range(LOADS):
                answer = await ask(engine, next(adapters), "new", next(numbers), 1)
                firsts[kind].append(answer.first_s)
                await asyncio.sleep(max(0.0, started_s + LOAD_EVERY_S * (turn + 1) - time.monotonic()))
            rates[kind].append((steady.tokens - tokens) / (time.monotonic() - started_s))
    await steady.close()
    seconds = {kind: statistics.median(values) for kind, values in firsts.items()}
    ratios = [loading / without for loading, without in zip(rates["cold"], rates["resident"], strict=True)]
    print(
        f"  first token of a cold adapter {1e3 * seconds['cold']:.0f} ms, of a resident one"
        f" {1e3 * seconds['resident']:.0f} ms ({len(firsts['cold'])} loads); during these loads the others make"
        f" {statistics.median(ratios):.3f} of the tokens ({min(ratios):.3f} to {max(ratios):.3f})",
        flush=True,
    )


async def zipf(engine: Engine, adapters: Sequence[AdapterSource], requests: int) -> None:
    draws = random.Random(0)
    weights = [1 / (1 + place) for place in range(len(adapters))]
    numbers = itertools.count()
    firsts: list[float] = []

    async def client() -> None:
        while (number := next(numbers)) < requests:
            owner = draws.choices(range(len(adapters)), weights)[0]
            answer = await ask(engine, adapters[owner], f"tenant {owner}", number, 16)
            firsts.append(answer.first_s)

    await rate(engine, [None], 16, 64)  # touches all KV memory
    loads, resident = _loads(engine), _resident_mib()
    await asyncio.gather(*(client() for _ in range(16)))
    loaded = _loads(engine) - loads
    every = sorted(firsts)
    print(
        f"  {requests} requests, {1 - loaded / requests:.3f} found their adapter resident; first token p50"
        f" {1e3 * every[len(every) // 2]:.0f} ms, p99 {1e3 * every[int(0.99 * len(every))]:.0f} ms; resident memory"
        f" {resident:.0f} MiB before, {_resident_mib():.0f} after"
    )


def _loads(engine: Engine) -> int:
    stats = engine.stats()[MODEL].adapters
    assert stats is not None, "the model takes no adapters"
    return stats.loads_total


def _resident_mib() -> float:
    fields = Path("/proc/self/statm").read_text(encoding="utf-8").split()
    return int(fields[1]) / 256


def measure_resident(name: str, path: Path, folder: Path, rounds: int) -> None:
    """Throughput with each set of modules and, of a small model, the cost of loads."""
    config = open_checkpoint(path).config
    for about, modules in SETS.items():
        made = [make_adapter(folder / about / str(seed), config, modules, seed) for seed in range(SLOTS)]
        with Engine.load({MODEL: path}, EngineConfig(device="cpu", adapter_slots=SLOTS)) as engine:
            size = sum(file.stat().st_size for file in made[0].folder.iterdir())
            print(f"{name}, {about}: {size / 1e6:.1f} MB each", flush=True)
            asyncio.run(throughput(engine, made, rounds))


def measure_cold(path: Path, folder: Path, rounds: int) -> None:
    config = open_checkpoint(path).config
    for about, modules in SETS.items():
        count = SLOTS // 2 + LOADS * rounds
        made = [make_adapter(folder / about / str(seed), config, modules, seed) for seed in range(count)]
        with Engine.load({MODEL: path}, EngineConfig(device="cpu", adapter_slots=SLOTS)) as engine:
            print(f"loads of {about}:")
            asyncio.run(cold(engine, made[: SLOTS // 2], made[SLOTS // 2 :], rounds))


def measure_many(path: Path, folder: Path, quick: bool) -> None:
    config = open_checkpoint(path).config
    modules = SETS["rank 8 on q, v"]
    many = [make_adapter(folder / str(seed), config, modules, seed) for seed in range(100 if quick else REGISTERED)]
    little_kv = EngineConfig(device="cpu", adapter_slots=SLOTS, kv_cache_bytes=64 << 20)
    with Engine.load({MODEL: path}, little_kv) as engine:
        print(f"{len(many)} adapters in {SLOTS} slots, drawn by Zipf's law:")
        asyncio.run(zipf(engine, many, 200 if quick else 1000))


def main() -> None:
    """Print the chosen parts, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and requests")
    parser.add_argument("--part", choices=("throughput", "half-billion", "cold", "zipf"), help="one part alone")
    options = parser.parse_args()
    rounds = 2 if options.quick else 5
    small = fetch(SMALL, Settings().models_dir)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        if options.part in (None, "throughput"):
            measure_resident("SmolLM2-135M", small, root / "small", rounds)
        if options.part in (None, "half-billion"):
            measure_resident("Llama-shaped, 0.5 B", half_billion(root), root / "half-billion", rounds)
        if options.part in (None, "cold"):
            measure_cold(small, root / "cold", 2 * rounds)
        if options.part in (None, "zipf"):
            measure_many(small, root / "zipf", options.quick)


if __name__ == "__main__":
    main()
