"""The engine with drafts gives what it gives without: choices, stop strings, log-probabilities, usage."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig, TextDelta
from engine.runtime import model_loading
from engine.speculation import FixedDepth

PROMPT = [*range(10, 30), *range(10, 26)]
LONG = {"max_tokens": 48, "ignore_eos": True}
PARAMS = {
    "greedy": SamplingParams(temperature=0, **LONG),
    "sampled": SamplingParams(temperature=0.4, seed=11, n=3, logprobs=1, **LONG),
    "penalised": SamplingParams(temperature=0.3, seed=12, frequency_penalty=0.1, logit_bias={9: 3.0}, **LONG),
}


def load(folder: Path, **settings: bool) -> Engine:
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        kv_cache_bytes=8 << 20,
        scheduler=SchedulerConfig(max_running=8, step_tokens=64),
        **settings,
    )
    return Engine.load({"llama": folder}, config)


@pytest.fixture(scope="module")
def plain(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    with load(tiny_folders["llama"]) as engine:
        yield engine


@pytest.fixture(scope="module")
def drafting(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    """Always four deep, be it worth it or not."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(model_loading, "DepthController", lambda *_, **__: FixedDepth(4))
        engine = load(tiny_folders["llama"], ngram=True)
    with engine:
        yield engine


async def answers(engine: Engine, params: SamplingParams) -> dict[int, list[TextDelta]]:
    deltas: dict[int, list[TextDelta]] = {}
    stream: AsyncIterator[TextDelta] = engine.stream("llama", PROMPT, params)
    async for delta in stream:
        deltas.setdefault(delta.index, []).append(delta)
    return deltas


def shown(deltas: list[TextDelta]) -> tuple[object, ...]:
    """All that a reader sees, whatever pieces it came in."""
    last = deltas[-1]
    assert last.usage is not None
    return (
        "".join(delta.text for delta in deltas),
        [token for delta in deltas for token in delta.token_ids],
        [entry.token_id for delta in deltas for entry in delta.logprobs],
        last.finish_reason,
        last.stop,
        last.usage.completion_tokens,
    )


def accepted(deltas: list[TextDelta]) -> int:
    usage = deltas[-1].usage
    assert usage.accepted_draft_tokens <= usage.draft_tokens
    return usage.accepted_draft_tokens


@pytest.mark.parametrize("kind", PARAMS)
async def test_answers_are_those_without(plain: Engine, drafting: Engine, kind: str) -> None:
    without, with_drafts = await answers(plain, PARAMS[kind]), await answers(drafting, PARAMS[kind])
    assert {index: shown(each) for index, each in with_drafts.items()} == {
        index: shown(each) for index, each in without.items()
    }
    assert all(accepted(each) == 0 for each in without.values())


async def test_drafts_are_accepted_and_told_of(plain: Engine, drafting: Engine) -> None:
    """An answer of one token over and over is easy to guess."""
    params = SamplingParams(temperature=0, logit_bias={9: 100.0}, **LONG)
    (without,), (with_drafts,) = (await answers(plain, params)).values(), (await answers(drafting, params)).values()
    assert shown(with_drafts) == shown(without)
    assert accepted(with_drafts) >= 30


async def test_a_stop_string_amid_what_a_step_brought_ends_the_text_there(plain: Engine, drafting: Engine) -> None:
    (full,) = (await answers(plain, PARAMS["greedy"])).values()
    text = "".join(delta.text for delta in full)
    for start in range(4, len(text) - 6, 5):
        params = SamplingParams(temperature=0, stop=(text[start : start + 3],), **LONG)
        (without,), (with_drafts,) = (await answers(plain, params)).values(), (await answers(drafting, params)).values()
        assert shown(with_drafts) == shown(without)
