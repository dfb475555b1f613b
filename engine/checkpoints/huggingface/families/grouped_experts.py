"""The mixture of experts that DeepSeek-V2 and V3 have, and GLM-4.5 and later with them: see `RoutingRule`."""

from engine.checkpoints.huggingface.families.family import Dims, Fields
from engine.checkpoints.json_keys import Keys
from engine.models.experts import MAX_EXPERTS, ExpertsConfig
from kernels.weights import RoutingRule

GROUPED_KEYS = frozenset({"n_routed_experts", "moe_intermediate_size", "auto_map"})
"""Keys that the families with these experts understand. Published files name code of their own, which is not run."""

GROUPED_NAMES = {r"mlp\.shared_experts\.(\w+)": r"mlp.shared_expert.\1"}


def grouped_experts(keys: Keys, dims: Dims, rule: RoutingRule) -> Fields:
    """The experts and the layers that have them: all after the first `first_k_dense_replace`, or as `mlp_layer_types`
    says."""
    count = keys.size("n_routed_experts", maximum=MAX_EXPERTS)
    first = keys.size("first_k_dense_replace", 0, minimum=0)
    if keys.size("moe_layer_freq", 1) != 1:
        raise keys.refuse("moe_layer_freq", f"{keys.values['moe_layer_freq']} is not 1")
    size = keys.size("moe_intermediate_size")
    experts = ExpertsConfig(
        count=count,
        per_token=keys.size("num_experts_per_tok", maximum=count),
        size=size,
        renormalise=keys.flag("norm_topk_prob"),
        shared_size=keys.size("n_shared_experts", 0, minimum=0) * size,
        rule=rule,
        choice_bias=rule.scoring == "sigmoid",
        shared_gate=False,
    )
    return {"experts": experts, "sparse_layers": _sparse_layers(keys, dims, first)}


def _sparse_layers(keys: Keys, dims: Dims, first: int) -> tuple[bool, ...]:
    kinds = keys.values.get("mlp_layer_types")
    if kinds is None:
        return tuple(index >= first for index in range(dims.num_layers))
    if not isinstance(kinds, list) or len(kinds) != dims.num_layers or not set(map(str, kinds)) <= {"dense", "sparse"}:
        raise keys.refuse("mlp_layer_types", f"not a list of {dims.num_layers} times dense or sparse")
    return tuple(kind == "sparse" for kind in kinds)


def sigmoid_rule(keys: Keys, scale: float) -> RoutingRule:
    """The rule of DeepSeek-V3: sigmoids, and groups by their best two. `scale`: the default of its key."""
    for name, value in (("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")):
        if keys.text(name, value) != value:
            raise keys.refuse(name, f"{keys.values[name]!r:.80} is not {value}")
    return RoutingRule(
        scoring="sigmoid",
        scale=keys.number("routed_scaling_factor", scale),
        groups=keys.size("n_group", 1, maximum=MAX_EXPERTS),
        groups_per_token=keys.size("topk_group", 1, maximum=MAX_EXPERTS),
        group_best=2,
    )
