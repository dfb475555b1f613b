"""OLMo 2 and 3 (norms after attention and MLP, QK norm over all heads), and OLMoE."""

from engine.checkpoints.huggingface.families.family import (
    EXPERT_COUNT_KEYS,
    Dims,
    Family,
    Fields,
    expert_count,
    layer_types,
    rope_fields,
    ropes_by_type,
    windows_by_type,
)
from engine.checkpoints.json_keys import Keys
from engine.models.experts import ExpertsConfig


def _olmo2(keys: Keys, dims: Dims) -> Fields:
    return {**_norms_after(keys), **rope_fields(keys, dims)}


def _olmo3(keys: Keys, dims: Dims) -> Fields:
    slides = layer_types(keys, dims) or [(index + 1) % 4 != 0 for index in range(dims.num_layers)]
    theta = keys.number("rope_theta", 500_000.0)
    ropes = ropes_by_type(keys, dims, slides, theta, "rope_theta", theta)
    return {**_norms_after(keys), "windows": windows_by_type(keys, slides), **ropes}


def _norms_after(keys: Keys) -> Fields:
    bias = keys.flag("attention_bias")
    norms = {"pre_norm": False, "branch_norm": True, "qk_norm": True, "qk_norm_whole": True}
    return {"qkv_bias": bias, "o_bias": bias, **norms}


def _olmoe(keys: Keys, dims: Dims) -> Fields:
    bias = keys.flag("attention_bias")
    count = expert_count(keys, 64)
    experts = ExpertsConfig(
        count=count,
        per_token=keys.size("num_experts_per_tok", 8, maximum=count),
        size=keys.size("intermediate_size"),
        renormalise=keys.flag("norm_topk_prob"),
    )
    sparse = (True,) * dims.num_layers
    norms = {"qkv_bias": bias, "o_bias": bias, "qk_norm": True, "qk_norm_whole": True}
    return {**norms, "experts": experts, "sparse_layers": sparse, **rope_fields(keys, dims)}


_NAMES = {"post_attention_layernorm": "attention_output_norm", "post_feedforward_layernorm": "mlp_output_norm"}
_DEFAULTS = {"rms_norm_eps": 1e-5}

FAMILIES = (
    Family("olmo2", "Olmo2ForCausalLM", _olmo2, defaults=_DEFAULTS, names=_NAMES),
    Family("olmo3", "Olmo3ForCausalLM", _olmo3, defaults=_DEFAULTS, names=_NAMES),
    Family(
        "olmoe",
        "OlmoeForCausalLM",
        _olmoe,
        understood=EXPERT_COUNT_KEYS,
        defaults=_DEFAULTS,
    ),
)
