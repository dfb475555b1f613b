"""The real pair on the native CPU path: with drafts SmolLM2 says what it says without, and as likely, to the bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speculation.copying import copying_prompts
from engine import Completion, Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.catalog.catalog import DownloadError, fetch
from gateway.config.settings import Settings
from kernels.cpu.native.library import load

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

QUESTIONS = (copying_prompts()[0], "What is the capital of France?", "Write two lines about rain.", "Count to ten.")
LONG = {"logprobs": 2, "max_tokens": 40, "ignore_eos": True}
PARAMS = (SamplingParams(temperature=0, **LONG), SamplingParams(temperature=0.8, top_p=0.9, seed=7, **LONG))  # type: ignore[arg-type]
SLOTS = SchedulerConfig(max_running=4, step_tokens=256)


def answers(engine: Engine, params: SamplingParams, at_once: int) -> list[tuple[Any, ...]]:
    """Answer to each question, and its log-probabilities; `at_once` requests run in parallel."""
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
    given: list[Completion] = []
    for first in range(0, len(prompts), at_once):
        for choices in engine.generate("large", prompts[first : first + at_once], params):
            given += choices
    return [(each.token_ids, each.logprobs) for each in given]


@pytest.fixture
def expected(smollm2_file: Path) -> list[list[tuple[Any, ...]]]:
    """Answers to each question alone, with each prompt computed from zero."""
    config = EngineConfig(dtype="bfloat16", kv_cache_bytes=64 << 20, prefix_cache=False, scheduler=SLOTS)
    with Engine.load({"large": smollm2_file}, config) as engine:
        return [answers(engine, params, at_once=1) for params in PARAMS]


@pytest.fixture
def drafting(smollm2_file: Path, always_draft: None) -> Iterator[Engine]:
    """Five deep whatever it brings, looked up or by the small model, in memory for hardly three of the requests."""
    try:
        small = fetch("smollm2-small", Settings().models_dir)
    except DownloadError as error:
        pytest.skip(f"the small model cannot be fetched: {error}")
    config = EngineConfig(
        dtype="bfloat16", kv_cache_bytes=9 << 20, drafts={"large": "small"}, ngram=True, draft_depth=5, scheduler=SLOTS
    )
    with Engine.load({"large": smollm2_file, "small": small}, config) as engine:
        yield engine


def test_answers_are_those_without_to_the_bit(expected: list[list[tuple[Any, ...]]], drafting: Engine) -> None:
    for at_once in (4, 1):
        assert [answers(drafting, params, at_once) for params in PARAMS] == expected
    stats = drafting.stats()["large"]
    assert stats.speculation is not None
    assert {each.proposer for each in stats.speculation.drafts if each.accepted_total} == {"ngram", "draft"}
    assert stats.preemptions_total > 0
    assert stats.cached_tokens_total > 0
