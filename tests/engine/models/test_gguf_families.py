"""GGUF files of other architectures than Llama's: the same logits as the folder that they were written from."""

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as BlockType
from safetensors.numpy import load_file

from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from kernels.arrays import FLOAT32
from tests.engine.execution.harness import forward_logits, load_tiny, prompt
from tests.engine.models.tiny_gguf import make_gguf
from tests.support.tiny_families import FAMILY_KEYS, TinyFamily
from tests.support.tiny_models import TinyFolder

LONGROPE = FAMILY_KEYS["phi3"]["rope_parameters"]
CASES: dict[TinyFamily, tuple[dict[str, Any], dict[str, Any]]] = {
    "mixtral": ({"sliding_window": None}, {"llama.expert_count": 4, "llama.expert_used_count": 2}),
    "qwen3_moe": (
        {"mlp_only_layers": []},
        {"qwen3moe.expert_count": 8, "qwen3moe.expert_used_count": 2, "qwen3moe.expert_feed_forward_length": 40},
    ),
    "qwen2_moe": (
        {},
        {
            "qwen2moe.expert_count": 8,
            "qwen2moe.expert_used_count": 2,
            "qwen2moe.expert_feed_forward_length": 40,
            "qwen2moe.expert_shared_feed_forward_length": 56,
        },
    ),
    "gpt_oss": (
        {},
        {
            "gpt-oss.expert_count": 8,
            "gpt-oss.expert_used_count": 3,
            "gpt-oss.expert_feed_forward_length": 96,
            "gpt-oss.attention.sliding_window": 8,
            "gpt-oss.rope.scaling.type": "yarn",
            "gpt-oss.rope.scaling.factor": 8.0,
            "gpt-oss.rope.scaling.original_context_length": 64,
        },
    ),
    "glm4_moe": (
        {"eos_token_id": 2},
        {
            "glm4moe.expert_count": 8,
            "glm4moe.expert_used_count": 2,
            "glm4moe.expert_feed_forward_length": 40,
            "glm4moe.expert_shared_count": 2,
            "glm4moe.expert_group_count": 4,
            "glm4moe.expert_group_used_count": 2,
            "glm4moe.expert_gating_func": 2,
            "glm4moe.expert_weights_scale": 1.7,
            "glm4moe.expert_weights_norm": True,
            "glm4moe.leading_dense_block_count": 1,
            "glm4moe.rope.dimension_count": 8,
        },
    ),
    "minimax_m2": (
        {},
        {
            "minimax-m2.expert_count": 8,
            "minimax-m2.expert_used_count": 3,
            "minimax-m2.expert_feed_forward_length": 96,
            "minimax-m2.expert_gating_func": 2,
            "minimax-m2.rope.dimension_count": 8,
        },
    ),
    "olmo2": ({}, {}),
    "phi3": (
        {"sliding_window": 24},
        {"phi3.attention.sliding_window": 24, "phi3.rope.dimension_count": 12},
    ),
    "granite": (
        {},
        {
            "granite.attention.scale": 0.3,
            "granite.embedding_scale": 3.0,
            "granite.residual_scale": 0.4,
            "granite.logit_scale": 0.5,
        },
    ),
    "smollm3": ({}, {}),
    "glm4": ({"eos_token_id": 2}, {"glm4.rope.dimension_count": 8}),
    "gemma2": (
        {"query_pre_attn_scalar": 16},
        {
            "gemma2.attention.sliding_window": 8,
            "gemma2.attn_logit_softcapping": 2.0,
            "gemma2.final_logit_softcapping": 3.0,
        },
    ),
    "gemma3": (
        {"query_pre_attn_scalar": 16},
        {
            "gemma3.attention.sliding_window": 8,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
        },
    ),
}


def written(tiny_folder: TinyFolder, family: TinyFamily, path: Path, **more: Any) -> tuple[Path, Path]:
    """A folder and the file made of it."""
    overrides, keys = CASES[family]
    folder = tiny_folder(family, **overrides)
    return folder, make_gguf(path / "tiny.gguf", folder, keys=keys | more.pop("keys", {}), **more)


@pytest.mark.parametrize("family", CASES)
def test_a_file_computes_what_its_folder_does(family: TinyFamily, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder, path = written(tiny_folder, family, tmp_path)
    if family == "phi3":
        path = with_longrope(tmp_path / "longrope.gguf", folder)
    source, checkpoint = HFCheckpoint(folder), GGUFCheckpoint(path)
    offset = source.config.norm_offset
    expected = {
        name: array + np.float32(offset) if name.endswith("norm.weight") else array
        for name, array in source.tensors(FLOAT32)
    }
    for name, array in checkpoint.tensors(FLOAT32):
        np.testing.assert_array_equal(array, expected.pop(name), err_msg=name)
    assert not expected
    assert checkpoint.weight_bytes == source.weight_bytes
    assert (checkpoint.config.norm_offset, checkpoint.config.family) == (0, source.config.family)
    tokens = prompt(70)
    torch.testing.assert_close(
        forward_logits(load_tiny(path), tokens, 33), forward_logits(load_tiny(folder), tokens, 33), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(("arch", "name"), [("GLM4_MOE", "glm4_moe"), ("MINIMAXM2", "minimax_m2")])
def test_the_files_have_the_names_of_gguf(arch: str, name: TinyFamily, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """Those that the package `gguf` gives the architecture's tensors, for every tensor of the folder."""
    folder, path = written(tiny_folder, name, tmp_path)
    layers = HFCheckpoint(folder).config.num_layers
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], layers)
    reader = gguf.GGUFReader(path)
    found = {tensor.name for tensor in reader.tensors}
    expected = set()
    for stored in load_file(folder / "model.safetensors"):
        merged = re.sub(r"\.experts\.\d+\.", ".experts.", stored).replace("_correction_bias", "_correction.bias")
        expected.add(names.get_name(merged, try_suffixes=(".weight", ".bias")))
    assert found == expected
    assert (
        bytes(reader.fields["general.architecture"].parts[-1]).decode() == gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[arch]]
    )


def test_layers_that_draft_are_not_loaded(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    keys = {"glm4moe.block_count": 4, "glm4moe.nextn_predict_layers": 1}
    vectors = {"blk.3.nextn.enorm.weight": [1.0] * 64, "blk.3.attn_norm.weight": [1.0] * 64}
    folder, path = written(tiny_folder, "glm4_moe", tmp_path, keys=keys, vectors=vectors)
    checkpoint = GGUFCheckpoint(path)
    assert checkpoint.config.num_layers == 3
    assert dict(checkpoint.tensors(FLOAT32)).keys() == dict(HFCheckpoint(folder).tensors(FLOAT32)).keys()


def with_longrope(path: Path, folder: Path) -> Path:
    """The file of phi3 with the two sets of divisors."""
    return make_gguf(
        path,
        folder,
        keys=CASES["phi3"][1]
        | {
            "phi3.rope.scaling.original_context_length": 512,
            "phi3.rope.scaling.attn_factor": math.sqrt(1 + math.log(1) / math.log(512)),
        },
        vectors={f"rope_factors_{kind}.weight": LONGROPE[f"{kind}_factor"] for kind in ("short", "long")},
    )


def test_quantised_experts_are_parts_of_one_tensor(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    overrides, keys = CASES["qwen3_moe"]
    shape = {"hidden_size": 64, "moe_intermediate_size": 64, "head_dim": 16, "intermediate_size": 96}
    folder = tiny_folder("qwen3_moe", **overrides, **shape)
    sizes = {"qwen3moe.expert_feed_forward_length": 64}
    checkpoint = GGUFCheckpoint(make_gguf(tmp_path / "q8.gguf", folder, BlockType.Q8_0, keys=keys | sizes))
    plain = dict(HFCheckpoint(folder).tensors(FLOAT32))
    experts = [name for name in checkpoint.quantized if ".experts." in name]
    assert len(experts) == 3 * 8 * 3
    for name, weight in checkpoint.stored(experts):
        rows = gguf.quants.quantize(plain[name], BlockType.Q8_0)
        assert (weight.format, weight.out_features, weight.in_features) == ("q8_0", 64, 64)
        np.testing.assert_array_equal(weight.rows, rows, err_msg=name)
        assert checkpoint.quantized[name].bytes == rows.nbytes


@pytest.mark.parametrize(
    ("family", "keys", "named"),
    [
        ("qwen3_moe", {"qwen3moe.expert_count": 4}, "blk.0.ffn_down_exps.weight has shape [8"),
        ("qwen3_moe", {"qwen3moe.expert_count": 0}, "qwen3moe.expert_count"),
        ("qwen3_moe", {"qwen3moe.expert_used_count": 9}, "qwen3moe.expert_used_count"),
        ("qwen3_moe", {"qwen3moe.expert_feed_forward_length": None}, "expert_feed_forward_length: is missing"),
        ("qwen3_moe", {"qwen3moe.expert_gating_func": 2}, "qwen3moe.expert_gating_func"),
        ("glm4_moe", {"glm4moe.expert_gating_func": 1}, "glm4moe.expert_gating_func"),
        ("glm4_moe", {"glm4moe.expert_count": None}, "glm4moe.expert_count: is missing"),
        ("glm4_moe", {"glm4moe.expert_shared_count": 1}, "shared_expert"),
        ("glm4_moe", {"glm4moe.expert_group_count": 3}, "group"),
        ("glm4_moe", {"glm4moe.leading_dense_block_count": 2}, "model.layers.1.mlp"),
        ("glm4_moe", {"glm4moe.nextn_predict_layers": 3}, "nextn_predict_layers"),
        ("minimax_m2", {"minimax-m2.expert_used_count": 9}, "minimax-m2.expert_used_count"),
        ("minimax_m2", {"minimax-m2.expert_shared_count": 1}, "minimax-m2.expert_shared_count"),
        ("gpt_oss", {"gpt-oss.attention.sliding_window": None}, "attention.sliding_window: is missing"),
        ("olmo2", {"olmo2.attention.sliding_window": 8}, "olmo2.attention.sliding_window"),
        ("olmo2", {"olmo2.expert_count": 8}, "olmo2.expert_count"),
        ("granite", {"granite.logit_scale": 0.0}, "logit_divisor"),
        ("glm4", {"glm4.feed_forward_length": 95}, "blk.0.ffn_up.weight has shape"),
        ("gemma2", {"gemma2.attn_logit_softcapping": -1.0}, "attention_softcap"),
        ("smollm3", {"smollm3.block_count": 3}, "model.layers.3"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    family: TinyFamily, keys: dict[str, Any], named: str, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        GGUFCheckpoint(written(tiny_folder, family, tmp_path, keys=keys)[1])
    assert named in str(caught.value)
