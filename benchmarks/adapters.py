"""Adapters in the engine: `python -m benchmarks.adapters [--quick]`, of SmolLM2-135M with random adapters.

Throughput: output tokens/s of 20 tenants' adapters, all resident, over those of the base model alone, at 1, 8 and 32
requests at once, in rounds that alternate. Cold: what 8 streams of the base model lose while a new adapter is loaded
every half second. Zipf: 1,000 adapters and 20 slots, 16 requests at once: the share of requests whose adapter is
resident, the time to the first token, and resident memory before and after, in little KV memory. It may grow by the
512 MiB of the cache of packed adapters.
"""

import argparse
import asyncio
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from engine.adapters.folder import WEIGHTS, digest_of
from engine.adapters.peft_config import CONFIG
from engine.adapters.source import AdapterSource
from engine.catalog.catalog import fetch
from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.engine import Engine
from engine.models.config import ModelConfig
from engine.models.layout import layer_tensors
from engine.request import SamplingParams
from gateway.config.settings import Settings

MODEL = "smollm2"
SLOTS = 20
REGISTERED = 1000
TOKENS = 48
SETS = {"rank 8 on q, v": (8, ("q_proj", "v_proj")), "rank 16 on all linears": (16, ("_proj",))}


def make_adapter(folder: Path, config: ModelConfig, rank: int, ends: tuple[str, ...], seed: int) -> AdapterSource:
    """Write a PEFT folder with small random numbers."""
    numbers = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config.num_layers):
        for name, shape in layer_tensors(config, layer):
            module = name.removesuffix(".weight")
            if len(shape) == 2 and module.endswith(ends):
                prefix = f"base_model.model.model.layers.{layer}.{module}"
                for kind, size in (("A", (rank, shape[1])), ("B", (shape[0], rank))):
                    tensors[f"{prefix}.lora_{kind}.weight"] = 0.01 * numbers.standard_normal(size, np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}), encoding="utf-8")
    return AdapterSource(digest_of(folder), folder)


@dataclass(frozen=True, slots=True)
class Answer:
    """Times of one request, in seconds from its start."""

    first_s: float
    end_s: float
    tokens: int


async def ask(engine: Engine, adapter: AdapterSource | None, tenant: str, number: int, tokens: int = TOKENS) -> Answer:
    prompt = [1 + (7 * number + 3 * place) % 4000 for place in range(32)]
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=tokens)
    started_s, first_s, count = time.monotonic(), 0.0, 0
    async for delta in engine.stream(MODEL, prompt, params, tenant=tenant, adapter=adapter):
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


async def cold(engine: Engine, fresh: Sequence[AdapterSource]) -> None:
    """`fresh`: adapters that have not been loaded."""

    async def steady() -> float:
        started_s = time.monotonic()
        answers = await asyncio.gather(*(ask(engine, None, f"tenant {n}", n, 200) for n in range(8)))
        return sum(answer.tokens for answer in answers) / (time.monotonic() - started_s)

    async def loads(first: list[float]) -> None:
        for number, adapter in enumerate(fresh):
            first.append((await ask(engine, adapter, "new", number, 1)).first_s)
            await asyncio.sleep(0.5)

    async def same(first: list[float]) -> None:
        while True:
            first.append((await ask(engine, None, "new", len(first), 1)).first_s)
            await asyncio.sleep(0.5)

    firsts: dict[str, list[float]] = {"resident": [], "cold": []}
    rates: dict[str, float] = {}
    for kind, others in (("resident", same), ("cold", loads)):
        task = asyncio.ensure_future(others(firsts[kind]))
        rates[kind] = await steady()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    seconds = {kind: statistics.median(values) for kind, values in firsts.items()}
    print(
        f"  first token of a cold adapter {1e3 * seconds['cold']:.0f} ms, without {1e3 * seconds['resident']:.0f} ms"
        f" ({len(firsts['cold'])} loads); the others make {rates['cold'] / rates['resident']:.3f} of the tokens"
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


def main() -> None:
    """Print all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and requests")
    quick = parser.parse_args().quick
    path = fetch(MODEL, Settings().models_dir)
    config = open_checkpoint(path).config
    with tempfile.TemporaryDirectory() as root:
        for name, (rank, ends) in SETS.items():
            made = [make_adapter(Path(root) / name / str(seed), config, rank, ends, seed) for seed in range(SLOTS + 12)]
            with Engine.load({MODEL: path}, EngineConfig(device="cpu", adapter_slots=SLOTS)) as engine:
                print(f"{name}: {sum(file.stat().st_size for file in made[0].folder.iterdir()) / 1e6:.1f} MB each")
                asyncio.run(throughput(engine, made[:SLOTS], 2 if quick else 5))
                asyncio.run(cold(engine, made[SLOTS:]))
        rank, ends = SETS["rank 8 on q, v"]
        many = [
            make_adapter(Path(root) / "zipf" / str(seed), config, rank, ends, seed)
            for seed in range(100 if quick else REGISTERED)
        ]
        little_kv = EngineConfig(device="cpu", adapter_slots=SLOTS, kv_cache_bytes=64 << 20)
        with Engine.load({MODEL: path}, little_kv) as engine:
            print(f"{len(many)} adapters in {SLOTS} slots, drawn by Zipf's law:")
            asyncio.run(zipf(engine, many, 200 if quick else 1000))


if __name__ == "__main__":
    main()
