"""Llama 2 and 3, and Mistral."""

from engine.checkpoints.huggingface.families.family import Dims, Family, Fields, layer_types, rope_fields, same_window
from engine.checkpoints.json_keys import Keys


def _llama(keys: Keys, dims: Dims) -> Fields:
    types = layer_types(keys, dims)
    if types is not None and any(types):
        raise keys.refuse("layer_types", "sliding layers without a sliding window")
    bias = keys.flag("attention_bias")
    return {"qkv_bias": bias, "o_bias": bias, "mlp_bias": keys.flag("mlp_bias"), **rope_fields(keys, dims)}


def mistral(keys: Keys, dims: Dims) -> Fields:
    fields = same_window(keys, dims, absent=4096)
    types = layer_types(keys, dims)
    if types is not None and types != [window is not None for window in fields["windows"]]:
        raise keys.refuse("layer_types", "Mistral slides in every layer or in none")
    return fields | rope_fields(keys, dims)


FAMILIES = (
    Family("llama", "LlamaForCausalLM", _llama),
    Family("mistral", "MistralForCausalLM", mistral),
)
