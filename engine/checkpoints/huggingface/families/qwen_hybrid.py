"""Qwen3-Next and Qwen3.5: gated delta nets (Yang et al., arXiv 2412.06464) in most layers, gated attention in the
others.

Of multimodal folders only the text is served: of a text the axes of the multimodal rope are equal, and it is the plain
rope.
"""

from collections.abc import Mapping
from typing import Any

from engine.checkpoints.huggingface.families.family import Dims, Family, Fields, Splits, Stacked, rope_fields
from engine.checkpoints.huggingface.families.qwen import MOE_KEYS, experts_of
from engine.checkpoints.json_keys import Keys
from engine.checkpoints.row_order import HeadSplit, delta_gates, delta_inputs, gated_query
from engine.models.config import ModelConfig
from engine.models.linear_attention import MAX_TAPS, LinearAttentionConfig
from kernels.arrays import Ints

_AXES = frozenset({"mrope_section", "mrope_interleaved"})
_KINDS = {"linear_attention": True, "full_attention": False}


def _hybrid(keys: Keys, dims: Dims) -> Fields:
    """The fields that all of them share."""
    if not keys.flag("attn_output_gate", True):
        raise keys.refuse("attn_output_gate", "false: attention without a gate is not understood")
    bias = keys.flag("attention_bias")
    return {
        "windows": (None,) * dims.num_layers,
        "qkv_bias": bias,
        "o_bias": bias,
        "qk_norm": True,
        "norm_offset": 1.0,
        "attention_gate": True,
        "linear": LinearAttentionConfig(
            key_heads=keys.size("linear_num_key_heads", 16),
            value_heads=keys.size("linear_num_value_heads", 32),
            key_dim=keys.size("linear_key_head_dim", 128),
            value_dim=keys.size("linear_value_head_dim", 128),
            taps=keys.size("linear_conv_kernel_dim", 4, maximum=MAX_TAPS),
        ),
        "linear_layers": _linear_layers(keys, dims),
        **rope_fields(_with_one_axis(keys), dims),
    }


def _linear_layers(keys: Keys, dims: Dims) -> tuple[bool, ...]:
    types = keys.values.get("layer_types")
    if types is None:
        interval = keys.size("full_attention_interval", 4)
        return tuple((index + 1) % interval != 0 for index in range(dims.num_layers))
    if not isinstance(types, list) or len(types) != dims.num_layers:
        raise keys.refuse("layer_types", f"not a list of {dims.num_layers} names")
    for name in types:
        if not isinstance(name, str) or name not in _KINDS:
            raise keys.refuse("layer_types", f"{name!r:.80} is not understood")
    return tuple(_KINDS[name] for name in types)


def _with_one_axis(keys: Keys) -> Keys:
    """The keys without those of the multimodal rope."""
    plain = dict(keys.values)
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(rope := keys.values.get(name), dict):
            plain[name] = {key: value for key, value in rope.items() if key not in _AXES}
    return Keys(plain, keys.prefix)


def _qwen3_next(keys: Keys, dims: Dims) -> Fields:
    shared = keys.size("shared_expert_intermediate_size", 512)
    return {**_hybrid(keys, dims), **experts_of(keys, dims, 512, 10, 512, shared)}


def _qwen3_5_moe(keys: Keys, dims: Dims) -> Fields:
    shared = keys.size("shared_expert_intermediate_size", 512)
    return {**_hybrid(keys, dims), **experts_of(keys, dims, 256, 8, 512, shared)}


def _attention_splits(config: ModelConfig) -> Splits:
    return {"self_attn.q_proj": _rows_of(gated_query(config))}


def _all_splits(config: ModelConfig) -> Splits:
    return {
        **_attention_splits(config),
        "linear_attn.in_proj_qkvz": _rows_of(delta_inputs(config)),
        "linear_attn.in_proj_ba": _rows_of(delta_gates(config)),
    }


def _rows_of(split: HeadSplit) -> Mapping[str, Ints]:
    return {module: split.rows(module) for module in split.modules}


_DEFAULTS: dict[str, Any] = {"head_dim": 256, "partial_rotary_factor": 0.25}
_NEXT = (r"mtp\.",)
_TEXT: dict[str, Any] = {
    "splits": _attention_splits,
    "prefixes": {"model.language_model.": "model."},
    "ignored": (r"mtp\.", r"(model\.)?visual\."),
}
_STACKED = {
    "mlp.experts.gate_up_proj": Stacked(("gate_proj.weight", "up_proj.weight")),
    "mlp.experts.down_proj": Stacked(("down_proj.weight",)),
    # Of FP8, as transformers writes them.
    "mlp.experts.gate_up_proj_scale_inv": Stacked(("gate_proj.weight_scale_inv", "up_proj.weight_scale_inv")),
    "mlp.experts.down_proj_scale_inv": Stacked(("down_proj.weight_scale_inv",)),
}
_MOE: dict[str, Any] = {
    "understood": MOE_KEYS,
    # Every layer has experts, and their router has no such key.
    "defaults": _DEFAULTS | {"intermediate_size": 1, "norm_topk_prob": True},
    "stacked": _STACKED,
    **_TEXT,
}

FAMILIES = (
    Family(
        "qwen3_next",
        "Qwen3NextForCausalLM",
        _qwen3_next,
        understood=MOE_KEYS,
        defaults=_DEFAULTS | {"norm_topk_prob": True},
        splits=_all_splits,
        stacked=_STACKED,
        ignored=_NEXT,
    ),
    Family("qwen3_5_text", "Qwen3_5ForCausalLM", _hybrid, defaults=_DEFAULTS, **_TEXT),
    Family(
        "qwen3_5",
        "Qwen3_5ForConditionalGeneration",
        _hybrid,
        defaults=_DEFAULTS,
        text_types=frozenset({"qwen3_5_text"}),
        **_TEXT,
    ),
    Family("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", _qwen3_5_moe, **_MOE),
    Family(
        "qwen3_5_moe",
        "Qwen3_5MoeForConditionalGeneration",
        _qwen3_5_moe,
        text_types=frozenset({"qwen3_5_moe_text"}),
        **_MOE,
    ),
)
