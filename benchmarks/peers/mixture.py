"""A small mixture of experts with random weights: one GGUF file, which llama.cpp and Turnpike both serve."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants

from benchmarks.peers.models import TENTH, add_shape, add_tokenizer, silent_tokens

EXPERTS, CHOSEN = 8, 2
SHAPE: Mapping[str, Any] = TENTH | {"model_type": "qwen3moe", "intermediate_size": 1344}
"""Of a layer's experts two compute as many products as the one MLP of the dense shape."""


def prepare(root: Path, kind: GGMLQuantizationType = GGMLQuantizationType.Q4_0) -> Path:
    """The file, made where it is missing: matrices as `kind`, routers and vectors in float32."""
    path = root / f"mixture-{EXPERTS}x{CHOSEN}-{kind.name}.gguf"
    if path.exists():
        return path
    root.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    writer = GGUFWriter(partial, SHAPE["model_type"])
    add_shape(writer, SHAPE, kind)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(CHOSEN)
    writer.add_expert_feed_forward_length(SHAPE["intermediate_size"])
    add_tokenizer(writer, SHAPE["vocab_size"])
    for name, numbers in _tensors():
        plain = numbers.ndim == 1 or "ffn_gate_inp" in name
        stored = GGMLQuantizationType.F32 if plain else kind
        writer.add_tensor(name, quants.quantize(numbers.numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)
    return path


def chosen_weights() -> int:
    """Weights that one token is computed with."""
    passed = EXPERTS - CHOSEN
    unused = SHAPE["num_hidden_layers"] * passed * 3 * SHAPE["intermediate_size"] * SHAPE["hidden_size"]
    return sum(numbers.numel() for _, numbers in _tensors()) - unused


def _tensors() -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    hidden, inter, head = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["head_dim"]
    heads, kv_heads = SHAPE["num_attention_heads"] * head, SHAPE["num_key_value_heads"] * head

    def matrix(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) * shape[-1] ** -0.5

    embedding = matrix(SHAPE["vocab_size"], hidden)
    embedding[silent_tokens(SHAPE["vocab_size"])] = 0
    tensors = [("token_embd.weight", embedding), ("output_norm.weight", torch.ones(hidden))]
    for layer in range(SHAPE["num_hidden_layers"]):
        parts = {
            "attn_norm": torch.ones(hidden),
            "attn_q": matrix(heads, hidden),
            "attn_k": matrix(kv_heads, hidden),
            "attn_v": matrix(kv_heads, hidden),
            "attn_q_norm": torch.ones(head),
            "attn_k_norm": torch.ones(head),
            "attn_output": matrix(hidden, heads),
            "ffn_norm": torch.ones(hidden),
            "ffn_gate_inp": matrix(EXPERTS, hidden),
            "ffn_gate_exps": matrix(EXPERTS, inter, hidden),
            "ffn_up_exps": matrix(EXPERTS, inter, hidden),
            "ffn_down_exps": matrix(EXPERTS, hidden, inter),
        }
        tensors += [(f"blk.{layer}.{name}.weight", numbers) for name, numbers in parts.items()]
    return tensors
