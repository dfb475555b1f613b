"""Models whose layers have heads of their own, share KV or have embeddings of their own: Gemma 4."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file

from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.engine import Engine
from engine.models.config import UnsupportedCheckpoint
from engine.models.kv_groups import group_layers, mixed_blocks, one_group
from engine.models.loader import load_model
from engine.request import SamplingParams
from gateway.config.settings import Settings
from gateway.process.model_memory import size_of
from kernels.arrays import BFLOAT16
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps
from kernels.layout import HeadShape, block_numbers
from tests.engine.execution.harness import forward_logits, load_tiny, prompt
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

GEMMA4: tuple[TinyFamily, ...] = ("gemma4", "gemma4_moe", "gemma4_shared")
native = pytest.mark.skipif(load() is None, reason="the native library is not built: make install, with a C++ compiler")


def test_a_gpu_refuses_heads_that_its_kernels_do_not_read(tmp_path: Path) -> None:
    class OnGpu:
        on_gpu, dtype = True, BFLOAT16

    folder = make_checkpoint(tmp_path / "model", "gemma4", global_head_dim=40)
    with pytest.raises(UnsupportedCheckpoint, match="head_dim: 40 is not a multiple of 16; use device cpu"):
        load_model(open_checkpoint(folder), OnGpu(), 64)  # type: ignore[arg-type]


def rewritten(folder: Path, **changes: Any) -> Path:
    """config.json with other keys; None removes a key."""
    file = folder / "config.json"
    keys = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({name: value for name, value in keys.items() if value is not None}))
    return folder


@pytest.mark.parametrize("shares_projection", [True, False])
def test_the_keys_of_published_files_are_those_that_transformers_writes(
    tmp_path: Path, shares_projection: bool
) -> None:
    folder = make_checkpoint(tmp_path / "model", "gemma4", attention_k_eq_v=shares_projection)
    assert "per_layer_config" in json.loads((folder / "config.json").read_text())
    expected = open_checkpoint(folder).config
    rewritten(folder, per_layer_config=None, global_head_dim=32, num_global_key_value_heads=1)
    assert open_checkpoint(folder).config == expected
    assert expected.heads_of(5) == HeadShape(1 if shares_projection else 4, 32, not shares_projection)


def test_weights_of_keys_that_a_layer_shares_are_ignored(tmp_path: Path) -> None:
    """Published files have them."""
    folder = make_checkpoint(tmp_path / "model", "gemma4_shared")
    expected = forward_logits(load_tiny(folder), prompt(20), 512)
    tensors = load_file(folder / "model.safetensors")
    for kind in ("k_proj", "v_proj", "k_norm"):
        name = f"model.layers.{{}}.self_attn.{kind}.weight"
        assert name.format(4) not in tensors
        tensors[name.format(4)] = tensors[name.format(2)].copy()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert torch.equal(forward_logits(load_tiny(folder), prompt(20), 512), expected)


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("gemma4", "model.layers.0.layer_scalar"),
        ("gemma4_moe", "model.layers.0.router.per_expert_scale"),
        ("gemma4_shared", "model.embed_tokens_per_layer.weight"),
        ("gemma4_shared", "model.layers.4.per_layer_input_gate.weight"),
    ],
)
def test_a_missing_tensor_is_named(family: TinyFamily, name: str, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", family)
    tensors = load_file(folder / "model.safetensors")
    del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UnsupportedCheckpoint, match=r"tensor model\..* is missing"):
        open_checkpoint(folder)


@pytest.mark.parametrize("family", GEMMA4)
def test_blocks_have_the_bytes_of_their_layers(family: str, tiny_folders: dict[str, Path]) -> None:
    config = open_checkpoint(tiny_folders[family]).config
    whole = mixed_blocks(config, one_group(config.kv_layers))
    assert whole is not None
    numbers = sum(16 * 2 * heads.kv_heads * heads.dim for heads in config.kv_heads)
    assert whole.starts(block_numbers)[1] == numbers
    groups = group_layers(config.kv_windows, config.max_position, config.kv_heads)
    blocks = mixed_blocks(config, groups)
    assert blocks is not None
    starts, size = blocks.starts(block_numbers)
    ends: dict[int, list[tuple[int, int]]] = {}
    for start, heads, group in zip(starts, blocks.heads, blocks.groups, strict=True):
        ends.setdefault(group, []).append((start, start + block_numbers(heads)))
    assert numbers <= len(groups.windows) * size <= numbers / (7 / 8)
    for runs in ends.values():
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(runs)), "layers overlap"
        assert runs[-1][1] <= size
    if load() is not None:
        for int8 in (False, True):
            of_scales = 2 * sum(16 * 2 * heads.kv_heads for heads in config.kv_heads) if int8 else 0
            kv = NativeOps(1, int8_kv=int8).allocate_mixed_kv(3, whole)
            assert kv.nbytes == 3 * (numbers * (1 if int8 else 2) + of_scales)


def test_the_memory_of_a_token_counts_each_layers_heads(tiny_folders: dict[str, Path]) -> None:
    def of(family: str) -> int:
        return size_of(Settings(dtype="float32"), tiny_folders[family]).kv_token_bytes

    assert of("gemma4") == 4 * (5 * 2 * 4 * 16 + 2 * 1 * 32)
    assert of("gemma4_shared") == 4 * (2 * 2 * 1 * 16 + 2 * 1 * 32)
    assert of("llama") == 4 * 2 * (2 * 2 * 16)


@pytest.mark.parametrize("family", GEMMA4)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=native)])
def test_an_engine_serves_them_with_prefix_hits_and_drafts_by_lookup(
    family: str, dtype: Any, tiny_folders: dict[str, Path]
) -> None:
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    texts = []
    for ngram in (False, True):
        config = EngineConfig(dtype=dtype, kv_cache_bytes=8 << 20, threads=1, ngram=ngram)
        with Engine.load({"gemma": tiny_folders[family]}, config) as engine:
            for _ in range(2):
                answers = engine.generate("gemma", ["a b c d e f g h i j k l m n o p q r"] * 3, params)
                texts += [choice.token_ids for choices in answers for choice in choices]
    assert all(text == texts[0] for text in texts)


@native
@pytest.mark.parametrize(
    ("family", "widths"),
    [
        ("gemma4", {}),
        ("gemma4_moe", {"moe_intermediate_size": 64}),
        ("gemma4_shared", {"hidden_size_per_layer_input": 32}),
    ],
)
def test_weights_may_be_rounded_at_load(family: TinyFamily, widths: dict[str, int], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", family, **widths)
    config = EngineConfig(dtype="bfloat16", kv_cache_bytes=8 << 20, threads=1, quantize="int8", kv_dtype="int8")
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with Engine.load({"gemma": folder}, config) as engine:
        [[alone]] = engine.generate("gemma", ["a b c"], params)
        for choices in engine.generate("gemma", ["a b c"] * 3, params):
            assert choices[0].token_ids == alone.token_ids
