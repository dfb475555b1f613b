"""Granite 3, and the dense models of Granite 4 of the same type: Llama with four multipliers."""

from engine.checkpoints.huggingface.families.family import Dims, Family, Fields, rope_fields
from engine.checkpoints.json_keys import Keys


def _granite(keys: Keys, dims: Dims) -> Fields:
    bias = keys.flag("attention_bias")
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": keys.flag("mlp_bias"),
        "attention_scale": keys.number("attention_multiplier", 1.0),
        "embedding_scale": keys.number("embedding_multiplier", 1.0),
        "residual_scale": keys.number("residual_multiplier", 1.0),
        "logit_divisor": keys.number("logits_scaling", 1.0),
        **rope_fields(keys, dims),
    }


FAMILIES = (
    Family(
        "granite",
        "GraniteForCausalLM",
        _granite,
        understood=frozenset({"attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling"}),
    ),
)
