"""SmolLM3: Llama without rotary embedding in every fourth layer (NoPE, Kazemnejad et al., arXiv 2305.19466)."""

from engine.checkpoints.huggingface.families.family import (
    Dims,
    Family,
    Fields,
    layer_types,
    rope_fields,
    windows_by_type,
)
from engine.checkpoints.json_keys import Keys


def _smollm3(keys: Keys, dims: Dims) -> Fields:
    bias = keys.flag("attention_bias")
    rotates = _rotating_layers(keys, dims)
    fields = rope_fields(keys, dims)
    slides = layer_types(keys, dims)
    if not keys.flag("use_sliding_window"):
        slides = [False] * dims.num_layers
    elif slides is None:
        slides = [not rotate for rotate in rotates]
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        "mlp_bias": keys.flag("mlp_bias"),
        "windows": windows_by_type(keys, slides, absent=None),
        "layer_ropes": tuple(fields["rope"] if rotate else None for rotate in rotates),
        **fields,
    }


def _rotating_layers(keys: Keys, dims: Dims) -> list[bool]:
    """Whether each layer has rotary embedding: `no_rope_layers` has a 1 for those, in spite of its name."""
    marks = keys.values.get("no_rope_layers")
    if marks is None:
        interval = keys.size("no_rope_layer_interval", 4)
        return [(index + 1) % interval != 0 for index in range(dims.num_layers)]
    if not isinstance(marks, list) or len(marks) != dims.num_layers or not all(mark in (0, 1) for mark in marks):
        raise keys.refuse("no_rope_layers", f"not a list of {dims.num_layers} zeros and ones")
    return [bool(mark) for mark in marks]


FAMILIES = (
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        _smollm3,
        understood=frozenset({"no_rope_layers"}),
        defaults={"rope_theta": 2_000_000.0, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
)
