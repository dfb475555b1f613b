"""Adapters equal PEFT: greedy text exactly, in float32, alone and in batches that mix them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.adapters.folder import digest_of
from engine.adapters.source import AdapterSource
from engine.completion import collect
from engine.config import EngineConfig
from engine.engine import Engine
from engine.request import SamplingParams
from tests.support.peft_adapters import ATTENTION, DENSE, make_adapter
from tests.support.tiny_models import reference_model, reference_text

FAMILIES = {
    "llama": DENSE,
    "qwen3": DENSE,
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "olmo2": DENSE,
    "smollm3": DENSE,
    "glm4": (*ATTENTION, "gate_up_proj", "down_proj"),
    "gemma3": DENSE,
    "mixtral": ATTENTION,
    "qwen3_moe": ATTENTION,
}
PROMPT = [5, 9, 14, 33, 21, 8, 40, 17, 3, 29]
NEW_TOKENS = 16
GREEDY = SamplingParams(temperature=0, ignore_eos=True, max_tokens=NEW_TOKENS)


def source_of(folder: Path) -> AdapterSource:
    return AdapterSource(digest_of(folder), folder)


def texts(engine: Engine, adapters: list[AdapterSource | None]) -> list[list[int]]:
    """The tokens of the same prompt with each adapter, all at once."""

    async def run() -> list[list[int]]:
        streams = [engine.stream("m", PROMPT, GREEDY, adapter=adapter) for adapter in adapters]
        done = await asyncio.gather(*(collect(stream, 1) for stream in streams))
        return [list(completions[0].token_ids) for completions in done]

    return asyncio.run(run())


@pytest.fixture(scope="module")
def engine(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    config = EngineConfig(device="cpu", dtype="float32", kv_cache_bytes=1 << 22, adapter_slots=3)
    with Engine.load({"m": tiny_folders["llama"]}, config) as loaded:
        yield loaded


@pytest.mark.parametrize("family", FAMILIES)
def test_text_of_a_family(family: str, tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    base = tiny_folders[family]
    expected = reference_text(make_adapter(tmp_path, base, FAMILIES[family]), PROMPT, NEW_TOKENS)
    plain = reference_text(reference_model(base), PROMPT, NEW_TOKENS)
    assert expected != plain, "the adapter changes nothing"
    config = EngineConfig(device="cpu", dtype="float32", kv_cache_bytes=1 << 22)
    with Engine.load({"m": base}, config) as engine:
        adapter = source_of(tmp_path)
        assert texts(engine, [adapter, None, adapter]) == [expected, plain, expected]


@pytest.mark.parametrize(
    "config",
    [
        {"use_rslora": True},
        {"rank": 8, "lora_alpha": 4, "rank_pattern": {"layers.0.self_attn.q_proj": 2}},
        {"alpha_pattern": {"down_proj": 32, "^model.layers.1.self_attn.v_proj": 1}},
        {"layers_to_transform": [1]},
        {"targets": ["q_proj", "v_proj"]},
        {"targets": "all-linear"},
    ],
    ids=str,
)
def test_scaling_and_targets(
    config: dict[str, object], engine: Engine, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    settings = dict(config)
    targets = settings.pop("targets", DENSE)
    model = make_adapter(tmp_path, tiny_folders["llama"], targets, seed=7, **settings)  # type: ignore[arg-type]
    assert texts(engine, [source_of(tmp_path)]) == [reference_text(model, PROMPT, NEW_TOKENS)]


def test_more_adapters_than_slots_at_once(engine: Engine, tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    expected: list[list[int]] = []
    sources: list[AdapterSource | None] = []
    for seed in range(8):
        folder = tmp_path / str(seed)
        model = make_adapter(folder, tiny_folders["llama"], seed=seed, rank=1 + seed)
        expected.append(reference_text(model, PROMPT, NEW_TOKENS))
        sources.append(source_of(folder))
    assert len({tuple(tokens) for tokens in expected}) == 8
    for _ in range(2):  # the second time from the prefix cache, as far as it reaches
        assert texts(engine, sources) == expected
    stats = engine.stats()["m"].adapters
    assert stats is not None
    assert stats.resident == stats.slots == 3
    assert stats.evictions_total >= 8 + 5
    assert stats.waiting == stats.failures_total == 0
