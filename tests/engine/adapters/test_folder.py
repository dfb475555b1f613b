"""Adapters that cannot be served are refused, and the message names the key or the tensor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.adapters.errors import UnsupportedAdapter
from engine.adapters.folder import WEIGHTS, digest_of, read_adapter
from engine.adapters.peft_config import CONFIG
from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.config import ModelConfig
from kernels.arrays import Array
from tests.support.adapter_folders import GOOD, HIDDEN, PREFIX, RANK, tensors, write

REFUSED_KEYS: dict[str, Any] = {
    "peft_type": "IA3",
    "use_dora": True,
    "lora_bias": True,
    "bias": "all",
    "modules_to_save": ["lm_head"],
    "layer_replication": [[0, 2]],
    "alora_invocation_tokens": [1],
    "init_lora_weights": "pissa_niter_4",
    "fan_in_fan_out": True,
    "use_qalora": True,
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "made_up": "value",
    "r": 65,
    "lora_alpha": 0,
    "rank_pattern": {"(a+)+$": 4},
    "alpha_pattern": {"q_proj": float("nan")},
}


@pytest.fixture(scope="module")
def config(tiny_folders: dict[str, Path]) -> ModelConfig:
    return open_checkpoint(tiny_folders["llama"]).config


@pytest.fixture
def weights(config: ModelConfig) -> dict[str, Array]:
    return tensors(config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim)


def read(folder: Path, config: ModelConfig, max_bytes: int = 1 << 24) -> Any:
    return read_adapter(folder, config, max_rank=64, max_bytes=max_bytes)


def refusal(folder: Path, config: ModelConfig, max_bytes: int = 1 << 24) -> str:
    with pytest.raises(UnsupportedAdapter) as caught:
        read(folder, config, max_bytes)
    message = str(caught.value)
    assert str(folder.parent) not in message, "a path of the machine is shown"
    return message


@pytest.mark.parametrize("key", REFUSED_KEYS)
def test_a_key_is_refused_by_name(key: str, config: ModelConfig, weights: dict[str, Array], tmp_path: Path) -> None:
    folder = write(tmp_path / "a", weights, {**GOOD, key: REFUSED_KEYS[key]})
    assert key in refusal(folder, config)


@pytest.mark.parametrize("value", [10**9, -1, 0.5, "4", True])
def test_a_rank_that_is_none_is_refused(
    value: object, config: ModelConfig, weights: dict[str, Array], tmp_path: Path
) -> None:
    assert "r:" in refusal(write(tmp_path / "a", weights, {**GOOD, "r": value}), config)


@pytest.mark.parametrize("text", ["[]", "{", "", "[" * 100_000, '"' + "x" * (2 << 20) + '"'], ids=range(5))
def test_a_config_that_is_no_object_is_refused(
    text: str, config: ModelConfig, weights: dict[str, Array], tmp_path: Path
) -> None:
    folder = write(tmp_path / "a", weights)
    (folder / CONFIG).write_text(text, encoding="utf-8")
    assert CONFIG in refusal(folder, config)
    (folder / CONFIG).unlink()
    assert CONFIG in refusal(folder, config)


def _bad_tensors(good: dict[str, Array]) -> dict[str, tuple[dict[str, Array | None], str]]:
    down, up = f"{PREFIX}q_proj.lora_A.weight", f"{PREFIX}q_proj.lora_B.weight"
    inf = good[up].copy()
    inf[0, 0] = np.inf
    huge = np.full_like(good[up], 3e38)
    pair: dict[str, Array | None] = {"A": good[down], "B": good[up]}

    def moved(module: str) -> dict[str, Array | None]:
        return {f"base_model.model.{module}.lora_{kind}.weight": numbers for kind, numbers in pair.items()}

    return {
        "inputs": ({down: np.zeros((RANK, HIDDEN + 1), np.float32)}, down),
        "outputs": ({up: np.zeros((len(good[up]) + 1, RANK), np.float32)}, up),
        "rank": ({up: np.zeros((len(good[up]), RANK + 1), np.float32)}, up),
        "no A": ({down: None}, up),
        "no B": ({up: None}, up),
        "not finite": ({up: inf}, up),
        "overflow by the scaling": ({up: huge}, up),
        "integers": ({down: np.zeros((RANK, HIDDEN), np.int32)}, down),
        "a vector": ({down: np.zeros(RANK, np.float32)}, down),
        "a layer too many": (moved("model.layers.9999.self_attn.q_proj"), "model.layers.9999"),
        "the head": (moved("lm_head"), "lm_head"),
        "the embedding": (moved("model.embed_tokens"), "embed_tokens"),
        "a path": (moved("../../etc/passwd"), "etc/passwd"),
        "a module twice": (moved("model.layers.00.self_attn.q_proj"), "layers.00"),
        "not LoRA": ({"base_model.model.lm_head.weight": good[up]}, "lm_head.weight"),
        "magnitudes": ({f"{PREFIX}q_proj.lora_magnitude_vector": good[up]}, "lora_magnitude_vector"),
    }


@pytest.mark.parametrize("name", _bad_tensors(tensors(HIDDEN, HIDDEN)))
def test_a_tensor_is_refused_by_name(name: str, config: ModelConfig, weights: dict[str, Array], tmp_path: Path) -> None:
    changes, named = _bad_tensors(weights)[name]
    changed = {tensor: numbers for tensor, numbers in {**weights, **changes}.items() if numbers is not None}
    assert named in refusal(write(tmp_path / "a", changed), config)


def test_files_that_are_no_weights_are_refused(config: ModelConfig, weights: dict[str, Array], tmp_path: Path) -> None:
    folder = write(tmp_path / "a", weights)
    whole = (folder / WEIGHTS).read_bytes()
    for data in (b"", whole[:100], whole[:-1], (2**60).to_bytes(8, "little") + whole[8:]):
        (folder / WEIGHTS).write_bytes(data)
        assert WEIGHTS in refusal(folder, config)
    (folder / WEIGHTS).write_bytes(whole)
    assert "more than" in refusal(folder, config, max_bytes=len(whole) - 1)
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    assert "pickled" in refusal(folder, config)


def test_parts_have_their_place_and_their_scaling(
    config: ModelConfig, weights: dict[str, Array], tmp_path: Path
) -> None:
    read_weights, _, targets = read(write(tmp_path / "a", weights), config)
    assert targets == ("q_proj", "v_proj")
    query, value = read_weights.layers[0].qkv
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    assert (query.first, value.first) == (0, (heads + kv_heads) * dim)
    np.testing.assert_array_equal(query.down, weights[f"{PREFIX}q_proj.lora_A.weight"])
    np.testing.assert_array_equal(query.up, 2 * weights[f"{PREFIX}q_proj.lora_B.weight"])
    assert read_weights.rank == RANK
    rooted, _, _ = read(write(tmp_path / "b", weights, {**GOOD, "use_rslora": True}), config)
    np.testing.assert_array_equal(rooted.layers[0].qkv[0].up, 4 * weights[f"{PREFIX}q_proj.lora_B.weight"])
    patterns = {**GOOD, "alpha_pattern": {"^model.layers.0.self_attn.v_proj": 4, "proj": 1}}
    scaled, _, _ = read(write(tmp_path / "c", weights, patterns), config)
    np.testing.assert_array_equal(scaled.layers[0].qkv[0].up, query.up)
    np.testing.assert_array_equal(scaled.layers[0].qkv[1].up, value.up / 2)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_files_are_refused_or_finite(
    data: st.DataObject, config: ModelConfig, weights: dict[str, Array], tmp_path: Path
) -> None:
    folder = write(tmp_path / "a", weights)
    name = data.draw(st.sampled_from([WEIGHTS, CONFIG]))
    content = bytearray((folder / name).read_bytes())
    header = 8 + int.from_bytes(content[:8], "little") if name == WEIGHTS else len(content)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, header - 1))] = data.draw(st.integers(0, 255))
    (folder / name).write_bytes(content)
    try:
        read_weights, _, _ = read(folder, config)
    except UnsupportedAdapter:
        return
    assert all(np.isfinite(part.down).all() and np.isfinite(part.up).all() for part in read_weights.all_parts())


def test_the_digest_is_of_both_files(weights: dict[str, Array], tmp_path: Path) -> None:
    first = digest_of(write(tmp_path / "a", weights))
    assert first == digest_of(write(tmp_path / "b", weights))
    assert first != digest_of(write(tmp_path / "c", weights, {**GOOD, "lora_alpha": 9}))
    (tmp_path / "b" / WEIGHTS).write_bytes((tmp_path / "b" / WEIGHTS).read_bytes() + b"x")
    assert first != digest_of(tmp_path / "b")
    assert json.loads((tmp_path / "a" / CONFIG).read_text(encoding="utf-8")) == GOOD
