"""Mixtures of experts whose router is a sigmoid with a bias for the choice: GLM-4.5 to 4.7, and MiniMax-M2."""

from engine.checkpoints.huggingface.families.family import (
    EXPERT_COUNT_KEYS,
    Dims,
    Family,
    Fields,
    expert_count,
    rope_fields,
)
from engine.checkpoints.huggingface.families.grouped_experts import (
    GROUPED_KEYS,
    GROUPED_NAMES,
    grouped_experts,
    sigmoid_rule,
)
from engine.checkpoints.json_keys import Keys
from engine.models.experts import ExpertsConfig
from kernels.weights import RoutingRule

_FIXED = {
    "scoring_func": "sigmoid",
    "use_routing_bias": True,
    "use_qk_norm": True,
    "qk_norm_type": "per_layer",
    "shared_intermediate_size": 0,
}
"""Keys of MiniMax-M2's files that other models of its publisher have with other values."""


def _glm4_moe(keys: Keys, dims: Dims) -> Fields:
    return {
        "qkv_bias": keys.flag("attention_bias"),
        "qk_norm": keys.flag("use_qk_norm"),
        **grouped_experts(keys, dims, sigmoid_rule(keys, scale=1.0)),
        **rope_fields(keys, dims),
    }


def _minimax_m2(keys: Keys, dims: Dims) -> Fields:
    for name, value in _FIXED.items():
        if keys.values.get(name) not in (None, value):
            raise keys.refuse(name, f"{keys.values[name]!r:.80} is not {value}")
    kinds = keys.values.get("attn_type_list")
    if kinds is not None and kinds != [1] * dims.num_layers:
        raise keys.refuse("attn_type_list", f"{kinds!r:.80} has a layer of another kind than 1")
    count = expert_count(keys, 256)
    experts = ExpertsConfig(
        count=count,
        per_token=keys.size("num_experts_per_tok", 8, maximum=count),
        size=keys.size("intermediate_size"),
        renormalise=True,
        rule=RoutingRule("sigmoid"),
        choice_bias=True,
    )
    rotated = keys.optional_size("rotary_dim")
    if rotated is not None:
        keys = Keys({"partial_rotary_factor": rotated / dims.head_dim, **keys.values}, keys.prefix)
    norms = {"qk_norm": True, "qk_norm_whole": True}
    return {**norms, "experts": experts, "sparse_layers": (True,) * dims.num_layers, **rope_fields(keys, dims)}


FAMILIES = (
    Family(
        "glm4_moe",
        "Glm4MoeForCausalLM",
        _glm4_moe,
        understood=GROUPED_KEYS | {"use_qk_norm"},
        defaults={
            "rms_norm_eps": 1e-5,
            "num_key_value_heads": 8,
            "partial_rotary_factor": 0.5,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "moe_intermediate_size": 1408,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
        },
        names=GROUPED_NAMES,
        draft_layers=True,
    ),
    Family(
        "minimax_m2",
        "MiniMaxM2ForCausalLM",
        _minimax_m2,
        understood=EXPERT_COUNT_KEYS | {"use_qk_norm", "auto_map"},
        defaults={"head_dim": 128, "num_key_value_heads": 8, "rope_theta": 5_000_000.0},
        names={
            r"block_sparse_moe": "mlp.gate",
            r"block_sparse_moe\.gate": "mlp.gate",
            r"block_sparse_moe\.experts\.(\d+)\.w1": r"mlp.experts.\1.gate_proj",
            r"block_sparse_moe\.experts\.(\d+)\.w3": r"mlp.experts.\1.up_proj",
            r"block_sparse_moe\.experts\.(\d+)\.w2": r"mlp.experts.\1.down_proj",
        },
        draft_layers=True,
    ),
)
