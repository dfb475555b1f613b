"""An engine whose model releases what its windows have passed: the same text alone and together, with drafts, and as a
draft model."""

from pathlib import Path

import pytest

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig

PROMPTS = [list(range(10, 90)), list(range(10, 45)), [7, 8, 9] * 10]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, seed=3, n=2, max_tokens=30, ignore_eos=True)


def texts(folder: Path, rounds: int = 2, **settings: object) -> list[tuple[int, ...]]:
    scheduler = SchedulerConfig(max_running=4, step_tokens=64)
    config = EngineConfig(threads=2, kv_cache_bytes=1 << 22, scheduler=scheduler, **settings)  # type: ignore[arg-type]
    with Engine.load({"large": folder, "small": folder}, config) as engine:
        answers = [engine.generate("large", PROMPTS, params) for params in (GREEDY, SEEDED) * rounds]
    return [choice.token_ids for calls in answers for choices in calls for choice in choices]


@pytest.mark.parametrize("family", ["gemma3", "gpt_oss"])
def test_text_is_the_same_with_drafts_and_without(
    family: str, tiny_folders: dict[str, Path], always_draft: None
) -> None:
    folder = tiny_folders[family]
    released = texts(folder, ngram=False)
    assert released[: len(released) // 2] == released[len(released) // 2 :], "a prefix hit changes the text"
    assert texts(folder, ngram=True) == released
    assert texts(folder, drafts={"large": "small"}) == released, "a model that is drafted for keeps its blocks"
