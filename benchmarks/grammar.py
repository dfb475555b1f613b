"""Cost of structured outputs: `python -m benchmarks.grammar`.

Masks: microseconds to work out the allowed tokens of one place, to apply them to its logits and to move on, over
answers of typical schemas. Throughput: tokens a second of 8 clients at once, held to a schema and free, turn about, on
the real small model.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine import Engine, EngineConfig, SamplingParams
from engine.catalog.catalog import fetch
from engine.grammar import GrammarSpec
from gateway.config.settings import Settings
from kernels.arrays import FLOAT32
from kernels.cpu.native import NativeSampling

CONCURRENCY = 8
TOKENS = 64
ROUNDS = 5
MASKED_TOKENS = 2000

_PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["new", "vip", "blocked"]}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}, "zip": {"type": "string"}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "any object": {"type": "object"},
    "person": _PERSON,
    "persons": {"type": "array", "items": _PERSON},
    "call": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"name": {"const": name}, "arguments": _PERSON},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
            for name in ("add_person", "find_person", "drop_person")
        ]
    },
}
ENDLESS = GrammarSpec.json_schema({"type": "array", "items": _PERSON, "minItems": 1000})


def _mask_times_us(engine: Engine, schema: dict[str, Any]) -> list[float]:
    """Of answers whose tokens are drawn from the allowed ones at random, one after another."""
    served, rng = engine.models["model"], np.random.default_rng(0)
    assert served.grammars is not None
    grammar = served.grammars.compile(GrammarSpec.json_schema(schema)).result()
    words = np.zeros((served.vocab_size + 31) // 32, dtype=np.int32)
    sampling = NativeSampling()
    logits, bitmask = np.zeros((1, served.vocab_size), FLOAT32), words[None]
    times_us: list[float] = []
    matcher = grammar.matcher()
    while len(times_us) < MASKED_TOKENS:
        begun = time.perf_counter()
        matcher.fill_bitmask(words)
        sampling.mask_logits(logits, bitmask)
        ended = time.perf_counter()
        allowed = np.flatnonzero(np.isfinite(logits[0]))
        logits[:] = 0
        token = int(rng.choice(allowed))
        if token in served.eos_token_ids:
            matcher = grammar.matcher()
            moved = 0.0
        else:
            before = time.perf_counter()
            matcher.accept([token])
            moved = time.perf_counter() - before
        times_us.append((ended - begun + moved) * 1e6)
    return times_us


async def _tokens_per_second(engine: Engine, grammar: GrammarSpec | None, seed: int) -> float:
    prompt = engine.models["model"].text.encode("Write down some people, as JSON:")

    async def one(client: int) -> int:
        params = SamplingParams(
            max_tokens=TOKENS, seed=1000 * seed + client, grammar=grammar, ignore_eos=grammar is None
        )
        return sum([len(delta.token_ids) async for delta in engine.stream("model", prompt, params)])

    begun = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(one, range(CONCURRENCY))))
    return tokens / (time.perf_counter() - begun)


def _report_masks(engine: Engine) -> None:
    print(f"Masks over a vocabulary of {engine.models['model'].vocab_size}, us a token (p50 at most 100):")
    for name, schema in SCHEMAS.items():
        times_us = sorted(_mask_times_us(engine, schema))
        print(f"  {name:<12} p50 {_quantile(times_us, 0.5):6.1f}   p99 {_quantile(times_us, 0.99):7.1f}")


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * (len(ordered) - 1))]


def _report_throughput(engine: Engine) -> None:
    for grammar in (None, ENDLESS):
        asyncio.run(_tokens_per_second(engine, grammar, 0))  # what is done once
    pairs = [
        tuple(asyncio.run(_tokens_per_second(engine, grammar, seed)) for grammar in (None, ENDLESS))
        for seed in range(ROUNDS)
    ]
    free, held = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(held / free for free, held in pairs)
    print(f"{CONCURRENCY} clients, {TOKENS} tokens each, sampled, medians of {ROUNDS}:")
    print(f"  free {free:.0f} tokens/s, held to a schema {held:.0f}: {ratio:.2f} of it (at least 0.9)")


def main() -> None:
    file = fetch("smollm2", Settings().models_dir)
    with Engine.load({"model": file}, EngineConfig(kv_cache_bytes=256 << 20)) as engine:
        _report_masks(engine)
        _report_throughput(engine)


if __name__ == "__main__":
    main()
