"""Mixtures of experts in the keys of GGUF files."""

from engine.checkpoints.gguf.architecture import Dims, Fields
from engine.checkpoints.json_keys import Keys
from engine.models.experts import MAX_EXPERTS, ExpertsConfig
from kernels.weights import RoutingRule

EXPERT_KEYS = frozenset({"expert_count", "expert_used_count", "expert_feed_forward_length"})
SIGMOID_KEYS = EXPERT_KEYS | {"expert_gating_func", "expert_weights_scale", "expert_weights_norm"}
GROUP_KEYS = frozenset({"expert_group_count", "expert_group_used_count", "expert_shared_count"})

SOFTMAX, SIGMOID = 1, 2
"""Values of `expert_gating_func`."""


def experts_fields(
    keys: Keys, dims: Dims, *, renormalise: bool, size: int | None = None, shared_size: int = 0, bias: bool = False
) -> Fields:
    count = keys.size("expert_count", maximum=MAX_EXPERTS)
    experts = ExpertsConfig(
        count=count,
        per_token=keys.size("expert_used_count", maximum=count),
        size=size or keys.size("expert_feed_forward_length"),
        renormalise=renormalise,
        shared_size=shared_size,
        bias=bias,
    )
    return {"experts": experts, "sparse_layers": (True,) * dims.num_layers}


def sigmoid_experts(keys: Keys, size: int, renormalise: bool, shared_size: int) -> ExpertsConfig:
    """Experts with the router of DeepSeek-V3."""
    if keys.size("expert_gating_func", SIGMOID) != SIGMOID:
        raise keys.refuse("expert_gating_func", f"{keys.values['expert_gating_func']} is not {SIGMOID}, a sigmoid")
    return grouped_experts(keys, size, renormalise, shared_size, choice_bias=True)


def grouped_experts(
    keys: Keys, size: int, renormalise: bool, shared_size: int, *, choice_bias: bool, sigmoid: bool = True
) -> ExpertsConfig:
    """Experts in groups, which count by their best two with sigmoids (DeepSeek-V3), else by their best (V2)."""
    count = keys.size("expert_count", maximum=MAX_EXPERTS)
    rule = RoutingRule(
        scoring="sigmoid" if sigmoid else "softmax",
        scale=keys.number("expert_weights_scale", 1.0),
        groups=keys.size("expert_group_count", 1, maximum=MAX_EXPERTS),
        groups_per_token=keys.size("expert_group_used_count", 1, maximum=MAX_EXPERTS),
        group_best=2 if sigmoid else 1,
    )
    return ExpertsConfig(
        count=count,
        per_token=keys.size("expert_used_count", maximum=count),
        size=size,
        renormalise=renormalise,
        shared_size=shared_size,
        rule=rule,
        choice_bias=choice_bias,
        shared_gate=False,
    )
