"""gpt-oss (model card, arXiv 2508.10925): attention with sinks, windows on alternate layers, experts with biases."""

from engine.checkpoints.huggingface.families.family import (
    EXPERT_COUNT_KEYS,
    Dims,
    Family,
    Fields,
    Stacked,
    expert_count,
    layer_types,
    rope_fields,
    windows_by_type,
)
from engine.checkpoints.json_keys import Keys
from engine.models.experts import ExpertsConfig

_CONSTANTS = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}
_YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def _gpt_oss(keys: Keys, dims: Dims) -> Fields:
    for name, value in _CONSTANTS.items():
        if keys.number(name, value) != value:
            raise keys.refuse(name, f"{keys.values[name]} is not {value}")
    bias = keys.flag("attention_bias", True)
    count = expert_count(keys, 128)
    experts = ExpertsConfig(
        count=count,
        per_token=keys.size("num_experts_per_tok", 4, maximum=count),
        size=keys.size("intermediate_size"),
        renormalise=True,  # a softmax of the chosen logits: the same number
        bias=True,
    )
    slides = layer_types(keys, dims) or [index % 2 == 0 for index in range(dims.num_layers)]
    stretched = Keys({**keys.values, "rope_scaling": keys.values.get("rope_scaling") or _YARN}, keys.prefix)
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        "attention_sinks": True,
        "experts": experts,
        "sparse_layers": (True,) * dims.num_layers,
        "windows": windows_by_type(keys, slides, absent=128),
        **rope_fields(stretched, dims),
    }


_GATE_UP = ("gate_proj", "up_proj")

FAMILIES = (
    Family(
        "gpt_oss",
        "GptOssForCausalLM",
        _gpt_oss,
        understood=EXPERT_COUNT_KEYS,
        defaults={"rope_theta": 150_000.0, "rms_norm_eps": 1e-5, "head_dim": 64, "num_key_value_heads": 8},
        names={r"mlp\.router": "mlp.gate"},
        stacked={
            "mlp.experts.gate_up_proj": Stacked(("gate_proj.weight", "up_proj.weight"), True, interleaved=True),
            "mlp.experts.down_proj": Stacked(("down_proj.weight",), transposed=True),
            "mlp.experts.down_proj_bias": Stacked(("down_proj.bias",)),
            "mlp.experts.down_proj_blocks": Stacked(("down_proj.blocks",)),
            "mlp.experts.down_proj_scales": Stacked(("down_proj.scales",)),
        }
        | {
            f"mlp.experts.gate_up_proj_{kind}": Stacked(tuple(f"{name}.{kind}" for name in _GATE_UP), interleaved=True)
            for kind in ("bias", "blocks", "scales")
        },
        activations={"silu": "clamped_swiglu"},
    ),
)
