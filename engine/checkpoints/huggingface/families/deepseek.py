"""DeepSeek-V2 and V3, and GLM-4.7-Flash: latent attention, and experts in groups."""

import math
from dataclasses import replace
from typing import Any

from engine.checkpoints.huggingface.families.family import Dims, Family, Fields
from engine.checkpoints.huggingface.families.grouped_experts import (
    GROUPED_KEYS,
    GROUPED_NAMES,
    grouped_experts,
    sigmoid_rule,
)
from engine.checkpoints.huggingface.rope import rope_from_config
from engine.checkpoints.json_keys import Keys
from engine.models.config import RopeConfig
from engine.models.experts import MAX_EXPERTS
from engine.models.latent import LatentConfig
from kernels.weights import RoutingRule


def _deepseek_v2(keys: Keys, dims: Dims) -> Fields:
    if keys.flag("norm_topk_prob"):
        raise keys.refuse("norm_topk_prob", "true is not understood in this family")
    if keys.text("scoring_func", "softmax") != "softmax":
        raise keys.refuse("scoring_func", f"{keys.values['scoring_func']!r:.80} is not softmax")
    method = keys.text("topk_method", "greedy")
    if method not in ("greedy", "group_limited_greedy"):
        raise keys.refuse("topk_method", f"{method!r:.80} is not greedy or group_limited_greedy")
    rule = RoutingRule(scale=keys.number("routed_scaling_factor", 1.0))
    if method != "greedy":
        groups, open_groups = keys.size("n_group", maximum=MAX_EXPERTS), keys.size("topk_group", maximum=MAX_EXPERTS)
        rule = replace(rule, groups=groups, groups_per_token=open_groups)
    return {**_latent(keys, dims), **grouped_experts(keys, dims, rule)}


def _deepseek_v3(keys: Keys, dims: Dims) -> Fields:
    if not keys.flag("rope_interleave", True):
        raise keys.refuse("rope_interleave", "false is not understood")
    return {**_latent(keys, dims), **grouped_experts(keys, dims, sigmoid_rule(keys, scale=2.5))}


def _latent(keys: Keys, dims: Dims) -> Fields:
    bias = keys.flag("attention_bias")
    rotated = keys.size("qk_rope_head_dim", 64)
    head_dim = keys.size("qk_nope_head_dim", 128) + rotated
    value_dim = keys.size("v_head_dim", 128)
    if value_dim > head_dim:
        raise keys.refuse("v_head_dim", f"{value_dim}, more than the {head_dim} dimensions of a key")
    if (keys.optional_size("num_key_value_heads") or dims.num_heads) != dims.num_heads:
        raise keys.refuse("num_key_value_heads", f"is not {dims.num_heads}, the number of heads")
    rank = keys.optional_size("q_lora_rank", absent=1536)
    rope, max_position = rope_from_config(Keys({**keys.values, "partial_rotary_factor": 1.0}, keys.prefix), rotated)
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        "head_dim": head_dim,
        "num_kv_heads": dims.num_heads,
        "latent": LatentConfig(rank, keys.size("kv_lora_rank", 512), rotated, value_dim),
        "attention_scale": _attention_scale(rope, head_dim),
        "rope": replace(rope, rotary_dim=rotated),
        "max_position": max_position,
    }


def _attention_scale(rope: RopeConfig, head_dim: int) -> float | None:
    """YaRN's temperature (arXiv 2309.00071, section 3.4) is in the scores, not in the rotation."""
    if rope.kind == "default" or not rope.mscale_all_dim or rope.factor <= 1:
        return None
    magnitude = 0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1
    return float(head_dim**-0.5 * magnitude**2)


_V3: dict[str, Any] = {
    "fields": _deepseek_v3,
    "understood": GROUPED_KEYS,
    "names": GROUPED_NAMES,
    "interleaved_rope": True,
    "draft_layers": True,
}
_V3_DEFAULTS = {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048} | {
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "head_dim": 64,  # of what is rotated: that of a head is the sum of two other keys
}

FAMILIES = (
    Family(
        "deepseek_v2",
        "DeepseekV2ForCausalLM",
        _deepseek_v2,
        understood=GROUPED_KEYS,
        defaults={"n_routed_experts": 64, "moe_intermediate_size": 1407, "n_shared_experts": 2, "head_dim": 64},
        names=GROUPED_NAMES,
        interleaved_rope=True,
    ),
    Family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        defaults=_V3_DEFAULTS | {"n_group": 8, "topk_group": 4, "first_k_dense_replace": 3},
        **_V3,
    ),
    Family(
        "glm4_moe_lite",
        "Glm4MoeLiteForCausalLM",
        defaults=_V3_DEFAULTS
        | {"n_routed_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 1536}
        | {"routed_scaling_factor": 1.8, "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256}
        | {"rms_norm_eps": 1e-5, "first_k_dense_replace": 1},
        **_V3,
    ),
)
