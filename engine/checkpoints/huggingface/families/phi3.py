"""Phi-3 and Phi-4: fused projections, partial rotary embedding, longrope."""

from collections.abc import Mapping
from typing import Any

from engine.checkpoints.huggingface.families.family import Dims, Family, Fields, rope_fields, same_window
from engine.checkpoints.json_keys import Keys


def _phi3(keys: Keys, dims: Dims) -> Fields:
    return {**same_window(keys, dims), **rope_fields(Keys(_with_longrope(keys.values), keys.prefix), dims)}


def _with_longrope(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys with today's name of longrope, which older files call su or yarn."""
    renamed = dict(values)
    for name in ("rope_parameters", "rope_scaling"):
        scaling = values.get(name)
        if isinstance(scaling, dict):
            kinds = {key: "longrope" for key in ("rope_type", "type") if scaling.get(key) in ("su", "yarn")}
            renamed[name] = scaling | kinds
    return renamed


FAMILIES = (
    Family(
        "phi3",
        "Phi3ForCausalLM",
        _phi3,
        defaults={"rms_norm_eps": 1e-5},
        fused={
            "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
        },
    ),
)
