"""Mixtures of experts through the engine: the counts of tokens by expert, and quantised experts."""

from pathlib import Path

import pytest

from engine import Engine, EngineConfig, SamplingParams
from kernels.cpu.native.library import load
from tests.support.tiny_models import make_checkpoint

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

PARAMS = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)


def config(**settings: object) -> EngineConfig:
    return EngineConfig(dtype="bfloat16", kv_cache_bytes=8 << 20, threads=1, **settings)  # type: ignore[arg-type]


def test_tokens_are_counted_by_expert(tiny_folders: dict[str, Path]) -> None:
    models = {"mixture": tiny_folders["qwen3_moe"], "dense": tiny_folders["llama"]}
    with Engine.load(models, config()) as engine:
        before = engine.stats()["mixture"].expert_tokens
        list(engine.generate("mixture", ["The quick brown fox", "A queue"], PARAMS))
        after = engine.stats()["mixture"].expert_tokens
        assert len(before) == len(after) == 8
        assert sum(after) > sum(before)
        assert engine.stats()["dense"].expert_tokens == ()


def test_experts_may_be_quantised(tmp_path: Path) -> None:
    folder = make_checkpoint(
        tmp_path / "model", "qwen2_moe", moe_intermediate_size=64, shared_expert_intermediate_size=64
    )
    with Engine.load({"mixture": folder}, config(quantize="int8")) as engine:
        (choices,) = engine.generate("mixture", ["The quick brown fox"], PARAMS)
        assert len(choices[0].token_ids) == 8
