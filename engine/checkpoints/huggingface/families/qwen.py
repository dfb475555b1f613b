"""Qwen2, Qwen3, and their mixtures of experts."""

from engine.checkpoints.huggingface.families.family import (
    EXPERT_COUNT_KEYS,
    Dims,
    Family,
    Fields,
    expert_count,
    layer_types,
    rope_fields,
    windows_by_type,
)
from engine.checkpoints.json_keys import Keys
from engine.models.experts import ExpertsConfig


def qwen2(keys: Keys, dims: Dims) -> Fields:
    return {"qkv_bias": True, "windows": _windows(keys, dims), **rope_fields(keys, dims)}


def qwen3(keys: Keys, dims: Dims) -> Fields:
    bias = keys.flag("attention_bias")
    windows = _windows(keys, dims)
    return {"qkv_bias": bias, "o_bias": bias, "qk_norm": True, "windows": windows, **rope_fields(keys, dims)}


def _windows(keys: Keys, dims: Dims) -> tuple[int | None, ...]:
    """Windows from `max_window_layers` on, or as `layer_types` says."""
    types = layer_types(keys, dims)
    if not keys.flag("use_sliding_window"):
        if types is not None and any(types):
            raise keys.refuse("layer_types", "sliding layers without a sliding window")
        return (None,) * dims.num_layers
    if types is None:
        first = keys.size("max_window_layers", 28, minimum=0)
        types = [index >= first for index in range(dims.num_layers)]
    if keys.optional_size("sliding_window", absent=4096) is None:
        raise keys.refuse("sliding_window", "null, but use_sliding_window is true")
    return windows_by_type(keys, types)


def _qwen2_moe(keys: Keys, dims: Dims) -> Fields:
    _refuse_windows(keys, dims)
    shared = keys.size("shared_expert_intermediate_size", 5632)
    return {
        "qkv_bias": keys.flag("qkv_bias", True),
        **experts_of(keys, dims, 60, 4, 1408, shared),
        **rope_fields(keys, dims),
    }


def qwen3_moe(keys: Keys, dims: Dims) -> Fields:
    _refuse_windows(keys, dims)
    bias = keys.flag("attention_bias")
    experts = experts_of(keys, dims, 128, 8, 768, shared_size=0)
    return {"qkv_bias": bias, "o_bias": bias, "qk_norm": True, **experts, **rope_fields(keys, dims)}


def _refuse_windows(keys: Keys, dims: Dims) -> None:
    types = layer_types(keys, dims)
    if keys.flag("use_sliding_window") or (types is not None and any(types)):
        raise keys.refuse("use_sliding_window", "sliding windows are not supported in this family")


def experts_of(keys: Keys, dims: Dims, count: int, per_token: int, size: int, shared_size: int) -> Fields:
    """The experts by the keys, with transformers' defaults, and the layers that have them."""
    count = expert_count(keys, count)
    step = keys.size("decoder_sparse_step", 1)
    dense = keys.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(index) is int and 0 <= index < dims.num_layers for index in dense):
        raise keys.refuse("mlp_only_layers", f"{dense!r:.80} is not a list of layers")
    experts = ExpertsConfig(
        count=count,
        per_token=keys.size("num_experts_per_tok", per_token, maximum=count),
        size=keys.size("moe_intermediate_size", size),
        renormalise=keys.flag("norm_topk_prob"),
        shared_size=shared_size,
    )
    sparse = tuple(index not in dense and (index + 1) % step == 0 for index in range(dims.num_layers))
    return {"experts": experts, "sparse_layers": sparse}


MOE_KEYS = EXPERT_COUNT_KEYS | {"moe_intermediate_size"}
"""Keys of their mixtures of experts."""

FAMILIES = (
    Family("qwen2", "Qwen2ForCausalLM", qwen2),
    Family("qwen3", "Qwen3ForCausalLM", qwen3, defaults={"head_dim": 128}),
    Family("qwen2_moe", "Qwen2MoeForCausalLM", _qwen2_moe, understood=MOE_KEYS),
    Family("qwen3_moe", "Qwen3MoeForCausalLM", qwen3_moe, understood=MOE_KEYS),
)
