"""The architectures of GGUF files: how their keys and tensors differ from Llama's, as llama.cpp reads them.

Norm weights of Gemma have their offset of 1 in them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from engine.checkpoints.gguf.architecture import Architecture, Dims, Fields
from engine.checkpoints.gguf.deepseek2 import DEEPSEEK2
from engine.checkpoints.gguf.expert_keys import (
    EXPERT_KEYS,
    GROUP_KEYS,
    SIGMOID_KEYS,
    experts_fields,
    sigmoid_experts,
)
from engine.checkpoints.gguf.gemma4_keys import GEMMA4
from engine.checkpoints.gguf.hybrid import HYBRID_ARCHITECTURES
from engine.checkpoints.json_keys import Keys
from engine.models.config import RopeConfig
from engine.models.experts import MAX_EXPERTS


def _llama(keys: Keys, dims: Dims) -> Fields:
    """Llama and Mistral, and Mixtral if there are experts."""
    if not keys.size("expert_count", 0, minimum=0, maximum=MAX_EXPERTS):
        return {}
    size = keys.size("feed_forward_length")
    return {"family": "mixtral", **experts_fields(keys, dims, renormalise=True, size=size)}


def _qwen2(keys: Keys, dims: Dims) -> Fields:
    return {"qkv_bias": True}


def _qwen3(keys: Keys, dims: Dims) -> Fields:
    return {"qk_norm": True}


def _qwen2_moe(keys: Keys, dims: Dims) -> Fields:
    shared = keys.size("expert_shared_feed_forward_length", 0, minimum=0)
    return {"qkv_bias": True, **experts_fields(keys, dims, renormalise=False, shared_size=shared)}


def _qwen3_moe(keys: Keys, dims: Dims) -> Fields:
    return {"qk_norm": True, **experts_fields(keys, dims, renormalise=True)}


def _gpt_oss(keys: Keys, dims: Dims) -> Fields:
    window = keys.size("attention.sliding_window")
    return {
        "qkv_bias": True,
        "o_bias": True,
        "attention_sinks": True,
        "activation": "clamped_swiglu",
        "windows": tuple(window if index % 2 == 0 else None for index in range(dims.num_layers)),
        "rope": replace(dims.rope, truncate=False),
        **experts_fields(keys, dims, renormalise=True, bias=True),
    }


def _glm4_moe(keys: Keys, dims: Dims) -> Fields:
    first = keys.size("leading_dense_block_count", 0, minimum=0)
    size = keys.size("expert_feed_forward_length")
    experts = sigmoid_experts(
        keys, size, keys.flag("expert_weights_norm"), keys.size("expert_shared_count", 0, minimum=0) * size
    )
    return {
        "qk_norm": "blk.0.attn_q_norm.weight" in dims.tensors,
        "experts": experts,
        "sparse_layers": tuple(index >= first for index in range(dims.num_layers)),
    }


def _minimax_m2(keys: Keys, dims: Dims) -> Fields:
    experts = sigmoid_experts(keys, keys.size("expert_feed_forward_length"), renormalise=True, shared_size=0)
    norms = {"qk_norm": True, "qk_norm_whole": True}
    return {**norms, "experts": experts, "sparse_layers": (True,) * dims.num_layers}


def _olmo2(keys: Keys, dims: Dims) -> Fields:
    return {"pre_norm": False, "branch_norm": True, "qk_norm": True, "qk_norm_whole": True}


def _phi3(keys: Keys, dims: Dims) -> Fields:
    window = keys.size("attention.sliding_window", 0, minimum=0)
    return {"windows": (window or None,) * dims.num_layers}


def _granite(keys: Keys, dims: Dims) -> Fields:
    return {
        "attention_scale": keys.optional_number("attention.scale"),
        "embedding_scale": keys.number("embedding_scale", 1.0),
        "residual_scale": keys.number("residual_scale", 1.0),
        "logit_divisor": keys.number("logit_scale", 1.0),
    }


def _smollm3(keys: Keys, dims: Dims) -> Fields:
    return {"layer_ropes": tuple(dims.rope if (index + 1) % 4 else None for index in range(dims.num_layers))}


def _glm4(keys: Keys, dims: Dims) -> Fields:
    return {"branch_norm": True}


_LARGEST_GEMMAS = {46, 62}
"""Layer counts of the 27 B models, whose scores are scaled by another width: no key says it."""


def _gemma(keys: Keys, dims: Dims) -> Fields:
    scale = dims.head_dim if dims.num_layers not in _LARGEST_GEMMAS else dims.hidden_size / dims.num_heads
    return {
        "branch_norm": True,
        "activation": "gelu_tanh",
        "attention_scale": scale**-0.5,
        "attention_softcap": keys.optional_number("attn_logit_softcapping"),
        "logit_softcap": keys.optional_number("final_logit_softcapping"),
        "embedding_scale": math.sqrt(dims.hidden_size),
    }


def _gemma2(keys: Keys, dims: Dims) -> Fields:
    window = keys.size("attention.sliding_window", 4096)
    defaults = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    windows = tuple(window if index % 2 == 0 else None for index in range(dims.num_layers))
    return {**_gemma(Keys({**defaults, **keys.values}, keys.prefix), dims), "windows": windows}


def _gemma3(keys: Keys, dims: Dims) -> Fields:
    window = keys.size("attention.sliding_window")
    slides = [(index + 1) % 6 != 0 for index in range(dims.num_layers)]
    local = RopeConfig(theta=keys.number("rope.freq_base_swa", 10_000.0), rotary_dim=dims.rope.rotary_dim)
    return {
        **_gemma(keys, dims),
        "qk_norm": True,
        "windows": tuple(window if slide else None for slide in slides),
        "layer_ropes": tuple(local if slide else dims.rope for slide in slides) if any(slides) else (),
    }


_SOFTCAPS = frozenset({"attn_logit_softcapping", "final_logit_softcapping"})
_NORMS_AFTER = {"post_attention_norm": "attention_output_norm", "post_ffw_norm": "mlp_output_norm"}
_GATE_UP = {"ffn_up": ("mlp.gate_proj", "mlp.up_proj")}
_MULTIPLIERS = frozenset({"attention.scale", "embedding_scale", "residual_scale", "logit_scale"})

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("llama", _llama, frozenset({"expert_count", "expert_used_count"}), rope_rows="interleaved"),
    "qwen2": Architecture("qwen2", _qwen2),
    "qwen3": Architecture("qwen3", _qwen3),
    "qwen2moe": Architecture("qwen2_moe", _qwen2_moe, EXPERT_KEYS | {"expert_shared_feed_forward_length"}),
    "qwen3moe": Architecture("qwen3_moe", _qwen3_moe, EXPERT_KEYS),
    "gpt-oss": Architecture(
        "gpt_oss", _gpt_oss, EXPERT_KEYS, names={"post_attention_norm": "post_attention_layernorm"}
    ),
    "olmo2": Architecture("olmo2", _olmo2, names=_NORMS_AFTER),
    "phi3": Architecture(
        "phi3",
        _phi3,
        fused=_GATE_UP | {"attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    ),
    "granite": Architecture("granite", _granite, _MULTIPLIERS, rope_rows="interleaved"),
    "smollm3": Architecture("smollm3", _smollm3, rope_rows="interleaved"),
    "glm4": Architecture("glm4", _glm4, names=_NORMS_AFTER, fused=_GATE_UP, rope_rows="interleaved"),
    "glm4moe": Architecture(
        "glm4_moe",
        _glm4_moe,
        SIGMOID_KEYS | GROUP_KEYS | {"leading_dense_block_count", "nextn_predict_layers"},
        names={"post_attention_norm": "post_attention_layernorm"},
        draft_layers=True,
    ),
    "minimax-m2": Architecture("minimax_m2", _minimax_m2, SIGMOID_KEYS),
    "deepseek2": DEEPSEEK2,
    **HYBRID_ARCHITECTURES,
    "gemma2": Architecture("gemma2", _gemma2, _SOFTCAPS, names=_NORMS_AFTER),
    "gemma3": Architecture("gemma3_text", _gemma3, _SOFTCAPS | {"rope.freq_base_swa"}, names=_NORMS_AFTER),
    "gemma4": GEMMA4,
}
"""`llama` files are Llama, Mistral, Mixtral and other models of that architecture."""
