"""The models that drafts are measured on do what the figures rest on. Tiny ones, made by the same program."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.speculation import modes, pair
from benchmarks.speculation.modes import MODEL, Bench, Job, Mode
from engine import Engine, EngineConfig, SamplingParams

TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 9_000,
}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TINY.items():
        monkeypatch.setitem(pair.HALF_BILLION, name, value)
    monkeypatch.setattr(pair, "TRIAL_TOKENS", 128)
    monkeypatch.setattr(modes, "LEARNING_STEPS", 1)


def jobs(number: int) -> list[Job]:
    params = SamplingParams(temperature=1.0, seed=number, max_tokens=12, ignore_eos=True)
    return [Job([16 + (31 * place + first) % 8000 for place in range(20)], params) for first in (number, number + 10)]


def test_the_pair_agrees_as_often_as_was_asked_for(tmp_path: Path) -> None:
    target, draft, reached = pair.agreeing_pair(tmp_path, 0.7)
    assert reached == pytest.approx(0.7, abs=0.08)
    with Bench(target, draft) as bench:
        compared = bench.compare(jobs, 2, 1)
    assert all(len(figures) == 1 for figures in compared.tokens_s.values())
    assert set(compared.tokens_s) == set(Mode)
    assert compared.same > 0.0


def test_the_copying_model_goes_round_its_ring(tmp_path: Path) -> None:
    folder = pair.copying_model(tmp_path, 0.9)

    async def answer(engine: Engine) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=3, max_tokens=120, ignore_eos=True)
        return [token async for delta in engine.stream(MODEL, pair.ring_prompt(7), params) for token in delta.token_ids]

    with Engine.load({MODEL: folder}, EngineConfig(dtype="float32", kv_cache_bytes=32 << 20)) as engine:
        tokens = asyncio.run(answer(engine))
    behind = [pair.RING_START + (_place(token) + 1) % pair.RING for token in tokens]
    copied = sum(token == expected for token, expected in zip(tokens[1:], behind, strict=False))
    assert copied / len(tokens) == pytest.approx(0.9, abs=0.1)


def _place(token: int) -> int:
    """The token of the ring that one stands for."""
    place = token - pair.RING_START
    return place if 0 <= place < pair.RING else token % pair.RING
