"""The GGUF architecture of DeepSeek-V2 and V3, Kimi K2 and GLM-4.7-Flash: latent attention, and experts in groups."""

import math
from dataclasses import replace

from engine.checkpoints.gguf.architecture import Architecture, Dims, Fields
from engine.checkpoints.gguf.expert_keys import GROUP_KEYS, SIGMOID, SIGMOID_KEYS, SOFTMAX, grouped_experts
from engine.checkpoints.json_keys import Keys
from engine.models.config import RopeConfig
from engine.models.experts import MAX_EXPERTS
from engine.models.latent import LatentConfig

_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def _deepseek2(keys: Keys, dims: Dims) -> Fields:
    value_dim = keys.optional_size("attention.value_length_mla") or keys.size("attention.value_length")
    rotated = keys.size("rope.dimension_count")
    query_rank = keys.size("attention.q_lora_rank", 0, minimum=0) or None
    rope, scale = _rope(keys, dims)
    return {
        "num_kv_heads": dims.num_heads,
        "latent": LatentConfig(query_rank, keys.size("attention.kv_lora_rank"), rotated, value_dim),
        "rope": replace(rope, rotary_dim=rotated),
        "attention_scale": scale,
        **_experts(keys, dims),
    }


def _rope(keys: Keys, dims: Dims) -> tuple[RopeConfig, float | None]:
    """The rope, and the factor of the scores.

    YaRN's temperature (arXiv 2309.00071, section 3.4) is in the scores, and not in the rotation: files state a tenth of
    the models' `mscale_all_dim`, and no `mscale`, which is the same in all of them.
    """
    rope = dims.rope
    if rope.kind != "yarn":
        return rope, None
    if rope.attention_factor is not None:
        raise keys.refuse("rope.scaling.attn_factor", "is not understood in this architecture")
    multiplier = keys.number(_LOG_MULTIPLIER)
    if multiplier <= 0:
        raise keys.refuse(_LOG_MULTIPLIER, f"{multiplier} is not a positive number")
    magnitude = multiplier * math.log(rope.factor) + 1
    return replace(rope, attention_factor=1.0), dims.head_dim**-0.5 * magnitude**2


def _experts(keys: Keys, dims: Dims) -> Fields:
    """Those of all layers after the first `leading_dense_block_count`; none in dense models."""
    if not keys.size("expert_count", 0, minimum=0, maximum=MAX_EXPERTS):
        return {}
    first = keys.size("leading_dense_block_count", 0, minimum=0)
    choice_bias = f"blk.{first}.exp_probs_b.bias" in dims.tensors
    # Older files of models with sigmoids, which alone have such a bias, do not state them.
    scoring = keys.size("expert_gating_func", SIGMOID if choice_bias else SOFTMAX)
    if scoring not in (SOFTMAX, SIGMOID):
        raise keys.refuse("expert_gating_func", f"{scoring} is not {SOFTMAX} or {SIGMOID}, a softmax or a sigmoid")
    size = keys.size("expert_feed_forward_length")
    experts = grouped_experts(
        keys,
        size,
        keys.flag("expert_weights_norm"),
        keys.size("expert_shared_count", 0, minimum=0) * size,
        choice_bias=choice_bias,
        sigmoid=scoring == SIGMOID,
    )
    family = "deepseek_v3" if scoring == SIGMOID else "deepseek_v2"
    return {
        "family": family,
        "experts": experts,
        "sparse_layers": tuple(index >= first for index in range(dims.num_layers)),
    }


_KEYS = {"leading_dense_block_count", "nextn_predict_layers", _LOG_MULTIPLIER}
_LATENT_KEYS = {"kv_lora_rank", "q_lora_rank", "key_length_mla", "value_length_mla"}

DEEPSEEK2 = Architecture(
    "deepseek_v2",
    _deepseek2,
    SIGMOID_KEYS | GROUP_KEYS | _KEYS | {f"attention.{key}" for key in _LATENT_KEYS},
    names={
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_kv_b": "self_attn.kv_b_proj",
        "attn_k_b": "self_attn.k_b_proj",
        "attn_v_b": "self_attn.v_b_proj",
    },
    latent=True,
    draft_layers=True,
)
