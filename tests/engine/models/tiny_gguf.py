"""Writes a tiny Hugging Face folder as a GGUF file, as llama.cpp's converter would: an independent writer."""

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as BlockType
from safetensors.numpy import load_file

from tests.engine.models.tiny_gguf_layouts import DELTA_NAMES, LATENT_NAMES, converted, layout_keys

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


_EXPERTS = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}
_AFTER = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_SHARED = {
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
_GROUPED = _EXPERTS | {
    "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
_NAMES_OF: dict[str, dict[str, str]] = {
    "llama": {
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.experts.gate_proj": "ffn_gate_exps",
        "block_sparse_moe.experts.up_proj": "ffn_up_exps",
        "block_sparse_moe.experts.down_proj": "ffn_down_exps",
    },
    "qwen3moe": _EXPERTS,
    "qwen2moe": _EXPERTS | _SHARED,
    "deepseek2": _GROUPED | LATENT_NAMES,
    "qwen3next": _EXPERTS | _SHARED | DELTA_NAMES,
    "qwen35": DELTA_NAMES,
    "qwen35moe": _EXPERTS | _SHARED | DELTA_NAMES,
    "gpt-oss": _EXPERTS
    | {
        "mlp.router": "ffn_gate_inp",
        "self_attn.sinks": "attn_sinks",
        "post_attention_layernorm": "post_attention_norm",
    },
    "olmo2": _AFTER,
    "gemma2": _AFTER | {"pre_feedforward_layernorm": "ffn_norm"},
    "gemma3": _AFTER | {"pre_feedforward_layernorm": "ffn_norm"},
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "glm4moe": _GROUPED | {"post_attention_layernorm": "post_attention_norm"},
    "minimax-m2": {
        "block_sparse_moe.gate": "ffn_gate_inp",
        "block_sparse_moe.e_score_correction": "exp_probs_b",
        "block_sparse_moe.experts.gate_proj": "ffn_gate_exps",
        "block_sparse_moe.experts.up_proj": "ffn_up_exps",
        "block_sparse_moe.experts.down_proj": "ffn_down_exps",
    },
    "glm4": {
        "mlp.gate_up_proj": "ffn_up",
        "post_self_attn_layernorm": "post_attention_norm",
        "post_mlp_layernorm": "post_ffw_norm",
    },
}
_ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "gpt_oss": "gpt-oss"} | {
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "glm4_moe": "glm4moe",
    "minimax_m2": "minimax-m2",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "glm4_moe_lite": "deepseek2",
    "qwen3_next": "qwen3next",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
_PERMUTED = ("llama", "granite", "smollm3")


def make_gguf(
    path: Path,
    folder: Path,
    block_type: BlockType = BlockType.F32,
    *,
    keys: dict[str, Any] | None = None,
    frequency_divisors: list[float] | None = None,
    vectors: dict[str, list[float]] | None = None,
    tokenizer: bool = True,
    tensors_per_file: int = 0,
    older: bool = False,
) -> Path:
    """Write the checkpoint in `folder` to `path` with its matrices as `block_type`, vectors as F32; return `path`.

    `keys` are further metadata, or values in place of those of the folder; a None leaves the key out. A mistral or
    mixtral folder becomes architecture `llama`. The folder's own rope settings beyond the base are not translated.
    With `tensors_per_file` it is written in parts, of which the first is returned. `older`: see `converted`.
    """
    config = json.loads((folder / "config.json").read_text())
    family = config["model_type"]
    arch = _ARCHITECTURES.get(family, family)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=tensors_per_file)
    metadata = _metadata(arch, config, folder if tokenizer else None) | layout_keys(arch, config, older=older)
    metadata |= keys or {}
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, numbers in _tensors(config, load_file(folder / "model.safetensors"), older).items():
        array = permuted(name, numbers, config) if arch in _PERMUTED else numbers
        plain = array.ndim == 1 or name.endswith((".bias", "conv1d.weight")) or array.shape[-1] % 32
        stored = BlockType.F32 if plain else block_type
        writer.add_tensor(_gguf_name(name, arch), gguf.quants.quantize(array, stored), raw_dtype=stored)
    extra = {} if frequency_divisors is None else {"rope_freqs.weight": frequency_divisors}
    for name, values in (extra | (vectors or {})).items():
        writer.add_tensor(name, np.array(values, np.float32))
    write(writer)
    return path if not tensors_per_file else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def _tensors(config: dict[str, Any], stored: dict[str, np.ndarray], older: bool) -> dict[str, np.ndarray]:
    """The tensors of a folder as the converter writes them: experts stacked, offsets of norms added."""
    family = config["model_type"]
    tensors: dict[str, np.ndarray] = {}
    experts: dict[str, dict[int, np.ndarray]] = {}
    for name, array in stored.items():
        match = re.fullmatch(r"(.+\.experts)\.(\d+)\.(\w+)\.weight", name)
        if match:
            part = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(match[3], match[3])
            experts.setdefault(f"{match[1]}.{part}.weight", {})[int(match[2])] = array
        elif ".experts.gate_up_proj" in name:  # of gpt-oss: rows in turn, matrices transposed
            kind = "bias" if name.endswith("_bias") else "weight"
            rows = array if kind == "bias" else array.swapaxes(1, 2)
            for place, part in enumerate(("gate_proj", "up_proj")):
                tensors[name.replace("gate_up_proj", part).removesuffix("_bias") + "." + kind] = rows[
                    :, place::2
                ].copy()
        elif name.endswith(".experts.down_proj"):
            tensors[name + ".weight"] = array.swapaxes(1, 2).copy()
        elif name.endswith(".experts.down_proj_bias"):
            tensors[name.removesuffix("_bias") + ".bias"] = array
        elif name.endswith(".shared_expert_gate.weight"):
            tensors[name] = array[0] if older else array
        elif name.endswith(".e_score_correction_bias"):
            tensors[name.removesuffix("_bias") + ".bias"] = array
        elif name.endswith(".sinks"):
            tensors[name + ".weight"] = array
        else:
            offset = family.startswith("gemma") and name.endswith("norm.weight")
            tensors |= converted(name, array + np.float32(1) if offset else array, config, older=older)
    stacked = {name: np.stack([parts[index] for index in sorted(parts)]) for name, parts in experts.items()}
    return tensors | stacked


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permuted(name: str, array: np.ndarray, config: dict[str, Any]) -> np.ndarray:
    """q and k rows in the order of interleaved rope, by the formula of llama.cpp's convert_hf_to_gguf.py."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for part, count in heads.items():
        if part in name:
            split = array.reshape(count, 2, array.shape[0] // count // 2, *array.shape[1:])
            return split.swapaxes(1, 2).reshape(array.shape).copy()
    return array


def _gguf_name(name: str, arch: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        if suffix == "ssm_a":
            return f"blk.{layer}.ssm_a"
        return f"blk.{layer}.{(_NAMES | _NAMES_OF.get(arch, {}))[rest]}.{suffix}"
    return f"{_NAMES[stem]}.{suffix}"


def _metadata(arch: str, config: dict[str, Any], folder: Path | None) -> dict[str, Any]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    metadata: dict[str, Any] = {
        f"{arch}.block_count": config["num_hidden_layers"],
        f"{arch}.context_length": config["max_position_embeddings"],
        f"{arch}.embedding_length": config["hidden_size"],
        f"{arch}.feed_forward_length": config["intermediate_size"],
        f"{arch}.attention.head_count": config["num_attention_heads"],
        f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
        f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{arch}.rope.dimension_count": head_dim,
        f"{arch}.rope.freq_base": float(_rope_of(config)["rope_theta"]),
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }
    if folder is not None:
        metadata |= _tokenizer(folder)
    return metadata


def _rope_of(config: dict[str, Any]) -> dict[str, Any]:
    rope: dict[str, Any] = config["rope_parameters"]
    full: dict[str, Any] = rope.get("full_attention", rope)
    return full


def _tokenizer(folder: Path) -> dict[str, Any]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    model = tokenizer["model"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if index in special else 1 for index in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": json.loads((folder / "tokenizer_config.json").read_text())["chat_template"],
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)
