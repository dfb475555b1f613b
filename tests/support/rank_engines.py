"""Engines on several ranks, and what they answer."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.adapters.folder import digest_of
from engine.adapters.source import AdapterSource
from engine.completion import collect
from engine.grammar.spec import GrammarSpec
from engine.request import PREMIUM, STANDARD, ServiceClass

Answers = Mapping[str, Sequence[Sequence[int]]]

MODEL = "m"
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.9, seed=5, n=2, max_tokens=12, ignore_eos=True)
CUT_OFF = SamplingParams(temperature=1.1, top_p=0.8, top_k=40, seed=9, max_tokens=12, ignore_eos=True)
CHANGED = SamplingParams(
    temperature=0.7, seed=3, frequency_penalty=0.5, logit_bias={33: 2.0}, logprobs=2, max_tokens=12, ignore_eos=True
)
SAME = SamplingParams(temperature=0.2, seed=2, logit_bias={9: 100.0}, max_tokens=16, ignore_eos=True)
"""Drafts are accepted: the text repeats itself."""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WORD = SamplingParams(temperature=0.8, seed=4, max_tokens=24, grammar=GrammarSpec.json_schema(SCHEMA))

LONG_PROMPT = [7 + index % 300 for index in range(100)]
REPEATING = [*range(10, 30), *range(10, 26)]


def load_engine(folder: Path, **settings: Any) -> Engine:
    """An engine in float32, one thread for each rank, that computes long prompts in chunks and drafts by n-grams."""
    scheduler = SchedulerConfig(max_running=4, step_tokens=64, chunk_tokens=32)
    defaults = {"kv_cache_bytes": 4 << 20, "ngram": True, "draft_depth": 4, "scheduler": scheduler}
    config = EngineConfig(device="cpu", dtype="float32", threads=1, **{**defaults, **settings})
    return Engine.load({MODEL: folder}, config)


def answers_of(engine: Engine, adapter: Path | None = None) -> Answers:
    """Token ids of requests that use what a model on ranks has to keep the same."""
    together = engine.generate(MODEL, [LONG_PROMPT, REPEATING, list(range(40, 75))], GREEDY)
    return {
        "chunks and prefix hits": [list(choice.token_ids) for choices in together for choice in choices],
        "again": _ids(engine, GREEDY, LONG_PROMPT),
        "seeded": _ids(engine, SEEDED, REPEATING),
        "thresholds": _ids(engine, CUT_OFF, REPEATING),
        "changed logits": _ids(engine, CHANGED, REPEATING),
        "drafts": _ids(engine, SAME, [9] * 20),
        "grammar": _ids(engine, WORD, REPEATING),
        "preempted": asyncio.run(_preempted(engine)),
        "adapter": [] if adapter is None else asyncio.run(_adapted(engine, adapter)),
    }


def _ids(engine: Engine, params: SamplingParams, prompt: Sequence[int]) -> list[list[int]]:
    return [list(choice.token_ids) for choice in engine.generate(MODEL, [prompt], params)[0]]


async def _preempted(engine: Engine) -> list[list[int]]:
    """Standard requests that fill the memory, and premium ones after them."""

    async def generate(number: int, service_class: ServiceClass) -> list[int]:
        prompt = [(number * 37 + index) % 400 for index in range(60)]
        params = SamplingParams(temperature=0.9, seed=number, max_tokens=70, ignore_eos=True)
        stream = engine.stream(MODEL, prompt, params, service_class=service_class)
        [completion] = await collect(stream, 1)
        return list(completion.token_ids)

    standard = [asyncio.create_task(generate(number, STANDARD)) for number in range(4)]
    while not engine.stats()[MODEL].running:
        await asyncio.sleep(0.002)
    premium = [asyncio.create_task(generate(number, PREMIUM)) for number in range(4, 7)]
    return list(await asyncio.gather(*standard, *premium))


async def _adapted(engine: Engine, folder: Path) -> list[list[int]]:
    source = AdapterSource(digest_of(folder), folder)
    streams = [engine.stream(MODEL, REPEATING, GREEDY, adapter=each) for each in (source, None)]
    completions = await asyncio.gather(*(collect(stream, 1) for stream in streams))
    return [list(completion.token_ids) for [completion] in completions]
