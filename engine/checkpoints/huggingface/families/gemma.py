"""Gemma 2 and the text models of Gemma 3."""

import math
from collections.abc import Mapping
from typing import Any

from engine.checkpoints.huggingface.families.family import (
    Dims,
    Family,
    Fields,
    layer_types,
    rope_fields,
    ropes_by_type,
    windows_by_type,
)
from engine.checkpoints.json_keys import Keys
from engine.models.config import Activation


def _gemma2(keys: Keys, dims: Dims) -> Fields:
    slides = layer_types(keys, dims) or [index % 2 == 0 for index in range(dims.num_layers)]
    caps = softcaps(keys, scores=50.0, logits=30.0)
    return {**_common(keys, dims), "windows": windows_by_type(keys, slides), **caps, **rope_fields(keys, dims)}


def _gemma3(keys: Keys, dims: Dims) -> Fields:
    interval = keys.size("sliding_window_pattern", 6)
    slides = layer_types(keys, dims) or [(index + 1) % interval != 0 for index in range(dims.num_layers)]
    caps = softcaps(keys, scores=None, logits=None)
    ropes = ropes_by_type(keys, dims, slides, 1_000_000.0, "rope_local_base_freq", 10_000.0)
    return {**_common(keys, dims), "qk_norm": True, "windows": windows_by_type(keys, slides), **caps, **ropes}


def softcaps(keys: Keys, scores: float | None, logits: float | None) -> Fields:
    """Softcaps of scores and logits with their defaults. A null in the file turns one off."""
    defaults = {"attn_logit_softcapping": scores, "final_logit_softcapping": logits}
    caps = {name: keys.optional_number(name) if name in keys.values else cap for name, cap in defaults.items()}
    for name, cap in caps.items():
        if cap is not None and cap <= 0:
            raise keys.refuse(name, f"{cap} is not positive")
    return {"attention_softcap": caps["attn_logit_softcapping"], "logit_softcap": caps["final_logit_softcapping"]}


def _common(keys: Keys, dims: Dims) -> Fields:
    bias = keys.flag("attention_bias")
    scalar = keys.number("query_pre_attn_scalar", 256)
    if scalar <= 0:
        raise keys.refuse("query_pre_attn_scalar", f"{scalar} is not positive")
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        "branch_norm": True,
        "norm_offset": 1.0,
        "attention_scale": scalar**-0.5,
        "embedding_scale": math.sqrt(dims.hidden_size),
    }


_UNDERSTOOD = frozenset({"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"})
_DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
_NAMES = {
    "post_attention_layernorm": "attention_output_norm",
    "pre_feedforward_layernorm": "post_attention_layernorm",
    "post_feedforward_layernorm": "mlp_output_norm",
}
ACTIVATIONS: Mapping[str, Activation] = {"gelu_pytorch_tanh": "gelu_tanh"}

GEMMA3: dict[str, Any] = {
    "fields": _gemma3,
    "understood": _UNDERSTOOD,
    "defaults": _DEFAULTS
    | {
        "vocab_size": 262_208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "max_position_embeddings": 131_072,
    },
    "names": _NAMES,
    "activation_key": "hidden_activation",
    "activations": ACTIVATIONS,
}
"""The description of Gemma 3's text, alone or in a multimodal model. Its files leave out most keys."""

FAMILIES = (
    Family(
        "gemma2",
        "Gemma2ForCausalLM",
        _gemma2,
        understood=_UNDERSTOOD,
        defaults=_DEFAULTS,
        names=_NAMES,
        activation_key="hidden_activation",
        activations=ACTIVATIONS,
    ),
    Family("gemma3_text", "Gemma3ForCausalLM", **GEMMA3),
)
