"""GLM-4-0414: four norms a layer, and interleaved rope over half of a head."""

from engine.checkpoints.huggingface.families.family import Dims, Family, Fields, rope_fields
from engine.checkpoints.json_keys import Keys


def _glm4(keys: Keys, dims: Dims) -> Fields:
    return {"branch_norm": True, "qkv_bias": keys.flag("attention_bias", True), **rope_fields(keys, dims)}


FAMILIES = (
    Family(
        "glm4",
        "Glm4ForCausalLM",
        _glm4,
        defaults={
            "head_dim": 128,
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1.5625e-07,
            "eos_token_id": [151329, 151336, 151338],
        },
        names={"post_self_attn_layernorm": "attention_output_norm", "post_mlp_layernorm": "mlp_output_norm"},
        fused={"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
        interleaved_rope=True,
    ),
)
