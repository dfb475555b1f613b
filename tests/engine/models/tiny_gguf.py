"""Writes a tiny Hugging Face folder as a GGUF file, as llama.cpp's converter would: an independent writer."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as BlockType
from safetensors.numpy import load_file

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


def make_gguf(
    path: Path,
    folder: Path,
    block_type: BlockType = BlockType.F32,
    *,
    keys: dict[str, Any] | None = None,
    frequency_divisors: list[float] | None = None,
    tokenizer: bool = True,
) -> Path:
    """Write the checkpoint in `folder` to `path` with its matrices as `block_type`, vectors as F32; return `path`.

    `keys` are further metadata, or values in place of those of the folder; a None leaves the key out. A mistral
    folder becomes architecture `llama`. The folder's own rope settings beyond the base are not translated.
    """
    config = json.loads((folder / "config.json").read_text())
    arch = {"mistral": "llama"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, arch)
    metadata = _metadata(arch, config, folder if tokenizer else None) | (keys or {})
    for key, value in metadata.items():
        _add(writer, key, value)
    for name, numbers in load_file(folder / "model.safetensors").items():
        array = permuted(name, numbers, config) if arch == "llama" else numbers
        stored = BlockType.F32 if array.ndim == 1 else block_type
        writer.add_tensor(_gguf_name(name), gguf.quants.quantize(array, stored), raw_dtype=stored)
    if frequency_divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(frequency_divisors, np.float32))
    write(writer)
    return path


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


def _gguf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, rest = stem.split(".", 3)
        return f"blk.{layer}.{_NAMES[rest]}.{suffix}"
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
        f"{arch}.rope.freq_base": float(config["rope_parameters"]["rope_theta"]),
        "tokenizer.ggml.bos_token_id": config["bos_token_id"],
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }
    if folder is not None:
        metadata |= _tokenizer(folder)
    return metadata


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
