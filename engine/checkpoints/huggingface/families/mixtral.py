"""Mixtral: Mistral with a mixture of experts in every layer."""

from engine.checkpoints.huggingface.families.family import (
    EXPERT_COUNT_KEYS,
    Dims,
    Family,
    Fields,
    expert_count,
    rope_fields,
    same_window,
)
from engine.checkpoints.json_keys import Keys
from engine.models.experts import ExpertsConfig


def _mixtral(keys: Keys, dims: Dims) -> Fields:
    count = expert_count(keys, 8)
    experts = ExpertsConfig(
        count=count,
        per_token=keys.size("num_experts_per_tok", 2, maximum=count),
        size=keys.size("intermediate_size"),
        renormalise=True,
    )
    sparse = (True,) * dims.num_layers
    return {"experts": experts, "sparse_layers": sparse, **same_window(keys, dims), **rope_fields(keys, dims)}


FAMILIES = (
    Family(
        "mixtral",
        "MixtralForCausalLM",
        _mixtral,
        understood=EXPERT_COUNT_KEYS,
        defaults={"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5},
        names={
            r"block_sparse_moe\.gate": "mlp.gate",
            r"block_sparse_moe\.experts\.(\d+)\.w1": r"mlp.experts.\1.gate_proj",
            r"block_sparse_moe\.experts\.(\d+)\.w3": r"mlp.experts.\1.up_proj",
            r"block_sparse_moe\.experts\.(\d+)\.w2": r"mlp.experts.\1.down_proj",
        },
    ),
)
