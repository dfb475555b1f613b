"""GGUF files of Gemma 4, written by the rules of llama.cpp's converter: the weights and logits of the folder, and
llama.cpp's token ids."""

import json
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
from engine.checkpoints.gguf.tokenizer import build_tokenizer
from engine.checkpoints.gguf.vocabulary import read_vocabulary
from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import UnsupportedCheckpoint
from kernels.arrays import FLOAT32
from tests.engine.execution.harness import forward_logits, load_tiny, prompt
from tests.engine.models.tiny_gguf import write
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import TinyFolder, reference_model

FORMS: tuple[TinyFamily, ...] = ("gemma4", "gemma4_moe", "gemma4_shared")
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
}


def keys_of(config: dict[str, Any], full_dim: int) -> dict[str, Any]:
    """Metadata of the model in a config.json, whose full layers have heads of `full_dim` dimensions."""
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    layers, inner, shared = len(slides), config["intermediate_size"], config["num_kv_shared_layers"]
    wide = inner * (2 if config["use_double_wide_mlp"] else 1)
    ropes = config["rope_parameters"]
    keys = {
        "block_count": layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "feed_forward_length": [inner] * (layers - shared) + [wide] * shared if shared else inner,
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.shared_kv_layers": shared,
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": slides,
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "rope.freq_base_swa": ropes["sliding_attention"]["rope_theta"],
        "rope.dimension_count": full_dim,
        "rope.dimension_count_swa": config["head_dim"],
        "final_logit_softcapping": config["final_logit_softcapping"],
    }
    for suffix, dim in (("", full_dim), ("_swa", config["head_dim"])):
        keys |= {f"attention.key_length{suffix}": dim, f"attention.value_length{suffix}": dim}
    if config["attention_k_eq_v"]:
        both = config["num_key_value_heads"], config["num_global_key_value_heads"]
        keys["attention.head_count_kv"] = [both[0 if slide else 1] for slide in slides]
    if config["enable_moe_block"]:
        keys["expert_count"], keys["expert_used_count"] = config["num_experts"], config["top_k_experts"]
        keys["expert_feed_forward_length"] = config["moe_intermediate_size"]
    return {f"gemma4.{key}": value for key, value in keys.items()}


def written(
    folder: Path,
    path: Path,
    block_type: BlockType = BlockType.F32,
    *,
    keys: dict[str, Any] | None = None,
    divisors: list[float] | None = None,
    without: str = "",
) -> Path:
    """The file of a folder. `keys`: in place of those of its config; `divisors`: of rope_freqs."""
    config = json.loads((folder / "config.json").read_text())
    own = config.get("per_layer_config") or {}
    full_dim = config.get("global_head_dim") or next(each["head_dim"] for each in own.values())
    config["num_global_key_value_heads"] = config.get("num_global_key_value_heads") or next(
        (each["num_key_value_heads"] for each in own.values() if "num_key_value_heads" in each), None
    )
    writer = gguf.GGUFWriter(path, "gemma4")
    for key, value in (keys_of(config, full_dim) | (keys or {})).items():
        match value:
            case None:
                pass
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case _:
                writer.add_array(key, value)
    rotated = int(full_dim * config["rope_parameters"]["full_attention"]["partial_rotary_factor"] / 2)
    freqs = divisors or [1.0] * rotated + [1e30] * (full_dim // 2 - rotated)
    writer.add_tensor("rope_freqs.weight", np.array(freqs, np.float32))
    for name, array in load_file(folder / "model.safetensors").items():
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name)
        target = NAMES[name] if match is None else f"blk.{match[1]}.{NAMES[match[2]]}"
        if target == without:
            continue
        stored = BlockType.F32 if array.ndim == 1 or array.shape[-1] % 32 else block_type
        writer.add_tensor(target, gguf.quants.quantize(array, stored), raw_dtype=stored)
    write(writer)
    return path


@pytest.mark.parametrize("family", FORMS)
def test_a_file_is_the_model_of_its_folder(family: TinyFamily, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder(family)
    path = written(folder, tmp_path / "tiny.gguf")
    source, checkpoint = HFCheckpoint(folder), GGUFCheckpoint(path)
    for field in ("rope", "layer_ropes", "layer_heads", "windows", "kv_sources", "layer_mlp_sizes", "experts"):
        assert getattr(checkpoint.config, field) == getattr(source.config, field), field
    expected = dict(source.tensors(FLOAT32))
    for name, array in checkpoint.tensors(FLOAT32):
        np.testing.assert_array_equal(array, expected.pop(name), err_msg=name)
    assert not expected
    tokens = prompt(70)
    logits = forward_logits(load_tiny(path), tokens, 33)
    torch.testing.assert_close(logits, forward_logits(load_tiny(folder), tokens, 33), atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        theirs = reference_model(folder)(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(logits, theirs, atol=1e-4, rtol=1e-4)


def test_the_names_are_those_of_gguf(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """The package `gguf` knows them for the architecture."""
    known = {gguf.TENSOR_NAMES[each] for each in gguf.MODEL_TENSORS[gguf.MODEL_ARCH.GEMMA4]}
    for family in FORMS:
        path = written(tiny_folder(family), tmp_path / f"{family}.gguf")
        for tensor in gguf.GGUFReader(path).tensors:
            stem = re.sub(r"blk\.\d+\.", "blk.{bid}.", tensor.name.removesuffix(".weight").removesuffix(".scale"))
            assert stem in known, tensor.name


def test_quantised_matrices_are_parts_of_their_tensors(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder("gemma4_moe", moe_intermediate_size=64)
    checkpoint = GGUFCheckpoint(written(folder, tmp_path / "q8.gguf", BlockType.Q8_0))
    plain = dict(HFCheckpoint(folder).tensors(FLOAT32))
    experts = [name for name in checkpoint.quantized if ".experts." in name]
    assert len(experts) == checkpoint.config.num_layers * 8 * 3
    for name, weight in checkpoint.stored([*experts, "model.layers.0.mlp.shared_expert.up_proj.weight"]):
        np.testing.assert_array_equal(weight.rows, gguf.quants.quantize(plain[name], BlockType.Q8_0), err_msg=name)


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        ("gemma4", {"keys": {"gemma4.attention.sliding_window_pattern": [True, False]}}, "sliding_window_pattern"),
        ("gemma4", {"keys": {"gemma4.attention.sliding_window_pattern": 6}}, "sliding_window_pattern"),
        ("gemma4", {"keys": {"gemma4.attention.head_count_kv": [4, 4]}}, "head_count_kv: 2 sizes for 6 layers"),
        ("gemma4", {"keys": {"gemma4.attention.head_count_kv": [4, 2, 4, 4, 4, 1]}}, "head_count_kv: is not the same"),
        ("gemma4", {"keys": {"gemma4.attention.head_count_kv": [4, 4, 4, 4, 4, 0]}}, "head_count_kv: 0"),
        ("gemma4", {"keys": {"gemma4.attention.key_length_swa": None}}, "key_length_swa: is missing"),
        ("gemma4", {"keys": {"gemma4.attention.value_length_swa": 8}}, "value_length_swa"),
        ("gemma4", {"keys": {"gemma4.attention.shared_kv_layers": 6}}, "shared_kv_layers: 6 leaves no layer"),
        ("gemma4", {"keys": {"gemma4.feed_forward_length": [96] * 5 + [97]}}, "feed_forward_length"),
        ("gemma4", {"keys": {"gemma4.expert_count": 8}}, "expert_used_count"),
        ("gemma4", {"keys": {"gemma4.attn_logit_softcapping": 2.0}}, "attn_logit_softcapping"),
        ("gemma4", {"divisors": [1.0] * 3}, "rope_freqs.weight: not 16 divisors"),
        ("gemma4", {"divisors": [1.0] * 4 + [8.0] * 12}, "rope_freqs.weight: divisors are not 1"),
        ("gemma4", {"divisors": [1e30] * 8 + [1.0] * 8}, "rope_freqs.weight: divisors are not 1"),
        ("gemma4", {"without": "blk.1.layer_output_scale.weight"}, "model.layers.1.layer_scalar"),
        ("gemma4_moe", {"without": "blk.0.ffn_down_exps.scale"}, "model.layers.0.mlp.gate.per_expert_scale"),
        ("gemma4_moe", {"keys": {"gemma4.expert_count": 4}}, "ffn_down_exps.weight has shape [8"),
        ("gemma4_shared", {"without": "per_layer_token_embd.weight"}, "model.embed_tokens_per_layer.weight"),
        ("gemma4_shared", {"keys": {"gemma4.embedding_length_per_layer_input": 0}}, "per_layer"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    family: TinyFamily, change: dict[str, Any], named: str, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        GGUFCheckpoint(written(tiny_folder(family), tmp_path / "tiny.gguf", **change))
    assert named in str(caught.value)


MERGES = ("h e", "l l", "ll o", "he llo", "▁ w", "o r", "▁w or", "▁wor l", "▁worl d", "▁ ▁", "▁▁ ▁▁", "a b", "ab ab")
CHARACTERS = "abcdehlorw▁é.<>|"
RUNS = tuple("\n" * count for count in (1, 2, 3))


def vocabulary() -> dict[str, Any]:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>"]
    merged = [merge.replace(" ", "") for merge in MERGES]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *RUNS, *CHARACTERS, *merged]
    types = [3, 3, 3, 2, 3, *[6] * 256, *[1] * (len(tokens) - 261)]
    stated = {
        "model": "gemma4",
        "tokens": tokens,
        "scores": [0.0] * len(tokens),
        "token_type": types,
        "merges": list(MERGES),
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "add_space_prefix": False,
        "add_bos_token": False,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in stated.items()}


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", []),
        ("hello", [283]),
        ("hello world", [283, 288]),
        (" hello", [274, 283]),
        ("hello  world", [283, 274, 288]),
        ("    hello", [290, 283]),
        ("hello\nworld", [283, 261, 273, 285, 270, 267]),
        ("hello\n\nworld\n", [283, 262, 273, 285, 270, 267, 261]),
        ("a\n\n\nb", [264, 263, 265]),
        ("ababab", [292, 291]),
        ("café 漢", [266, 264, 107, 275, 274, 235, 193, 167]),
        ("<bos>hello", [277, 265, 271, 120, 278, 283]),
        ("<turn|>", [277, 121, 122, 272, 115, 279, 278]),
        ("tab\there", [121, 291, 14, 280, 272, 268]),
        ("he llo <0x41>", [280, 274, 282, 274, 277, 53, 125, 57, 54, 278]),
    ],
)
def test_ids_are_those_of_llama_cpp(text: str, ids: list[int]) -> None:
    """Recorded from its server, which begins every text with <bos>, whatever the file says."""
    tokenizer = build_tokenizer(read_vocabulary(vocabulary()))
    assert list(tokenizer.encode(text, add_special_tokens=True)) == [2, *ids]
    assert tokenizer.decode(ids) == text
    assert set(tokenizer.eos_token_ids) == {1, 4}


def test_a_vocabulary_without_merges_is_refused() -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer\.ggml\.merges"):
        build_tokenizer(read_vocabulary(vocabulary() | {"tokenizer.ggml.merges": []}))
