"""The GGUF architectures of Qwen3-Next and Qwen3.5: gated delta nets in most layers, gated attention in the others.

The norms have their offset of 1 in them, but for that of a delta net, which has none. The value heads of Qwen3.5 are in
tiled order. Of the multimodal rope a text needs no sections.
"""

from collections.abc import Mapping

from engine.checkpoints.gguf.architecture import Architecture, Dims, Fields
from engine.checkpoints.gguf.expert_keys import EXPERT_KEYS, experts_fields
from engine.checkpoints.json_keys import Keys
from engine.checkpoints.row_order import delta_gates, delta_inputs, gated_query
from engine.models.linear_attention import MAX_TAPS, LinearAttentionConfig

_RECURRENT, _SHARED = "attention.recurrent_layers", "expert_shared_feed_forward_length"


def _qwen3_next(keys: Keys, dims: Dims) -> Fields:
    return {**_hybrid(keys, dims, tiled=False), **_experts(keys, dims)}


def _qwen35(keys: Keys, dims: Dims) -> Fields:
    return _hybrid(keys, dims, tiled=True)


def _qwen35_moe(keys: Keys, dims: Dims) -> Fields:
    return {**_hybrid(keys, dims, tiled=True), **_experts(keys, dims)}


def _experts(keys: Keys, dims: Dims) -> Fields:
    return experts_fields(keys, dims, renormalise=True, shared_size=keys.size(_SHARED, 0, minimum=0))


def _hybrid(keys: Keys, dims: Dims, *, tiled: bool) -> Fields:
    value_heads, values = keys.size("ssm.time_step_rank"), keys.size("ssm.inner_size")
    if values % value_heads:
        raise keys.refuse("ssm.inner_size", f"{values} is not a multiple of {value_heads} heads")
    return {
        "qk_norm": True,
        "attention_gate": True,
        "linear": LinearAttentionConfig(
            key_heads=keys.size("ssm.group_count"),
            value_heads=value_heads,
            key_dim=keys.size("ssm.state_size"),
            value_dim=values // value_heads,
            taps=keys.size("ssm.conv_kernel", maximum=MAX_TAPS),
            tiled=tiled,
        ),
        "linear_layers": _linear_layers(keys, dims),
    }


def _linear_layers(keys: Keys, dims: Dims) -> tuple[bool, ...]:
    """A list with a flag for each layer, those that draft after the others; or every layer but each n-th."""
    flags = keys.values.get(_RECURRENT)
    if flags is None:
        interval = keys.size("full_attention_interval", 4)
        return tuple((index + 1) % interval != 0 for index in range(dims.num_layers))
    layers = keys.size("block_count")
    if not isinstance(flags, list) or len(flags) != layers or not all(isinstance(flag, bool) for flag in flags):
        raise keys.refuse(_RECURRENT, f"not a list of {layers} flags")
    return tuple(flags[: dims.num_layers])


_SIZES = frozenset({"conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank"})
_KEYS = frozenset(f"ssm.{key}" for key in _SIZES) | {
    _RECURRENT,
    "full_attention_interval",
    "nextn_predict_layers",
    "rope.dimension_sections",
}
_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_dt": "linear_attn.dt_bias",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_SPLITS = {"attn_q": gated_query}
# Every layer has experts: these files do not state the width of another MLP.
_ALL_SPARSE = {"feed_forward_length": 1}

HYBRID_ARCHITECTURES: Mapping[str, Architecture] = {
    "qwen3next": Architecture(
        "qwen3_next",
        _qwen3_next,
        _KEYS | EXPERT_KEYS | {_SHARED},
        names=_NAMES,
        # Older files have all inputs in one tensor.
        splits={**_SPLITS, "ssm_ba": delta_gates, "ssm_in": delta_inputs},
        defaults=_ALL_SPARSE,
        draft_layers=True,
    ),
    "qwen35": Architecture("qwen3_5_text", _qwen35, _KEYS, names=_NAMES, splits=_SPLITS, draft_layers=True),
    "qwen35moe": Architecture(
        "qwen3_5_moe_text",
        _qwen35_moe,
        _KEYS | EXPERT_KEYS | {_SHARED},
        names=_NAMES,
        splits=_SPLITS,
        defaults=_ALL_SPARSE,
        draft_layers=True,
    ),
}
