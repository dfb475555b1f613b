"""EXAONE 4: norms after attention and MLP; full layers between sliding ones have no rotary embedding."""

from engine.checkpoints.huggingface.families.family import (
    Dims,
    Family,
    Fields,
    layer_types,
    rope_fields,
    windows_by_type,
)
from engine.checkpoints.json_keys import Keys


def _exaone4(keys: Keys, dims: Dims) -> Fields:
    window = keys.optional_size("sliding_window", absent=4096)
    slides = layer_types(keys, dims) or _pattern(keys, dims, window)
    fields = rope_fields(keys, dims)
    ropes = () if window is None else tuple(fields["rope"] if slide else None for slide in slides)
    windows = windows_by_type(keys, slides)
    norms = {"pre_norm": False, "branch_norm": True, "qk_norm": True}
    return {**norms, "windows": windows, "layer_ropes": ropes, **fields}


def _pattern(keys: Keys, dims: Dims, window: int | None) -> list[bool]:
    """Whether each layer slides, by `sliding_window_pattern`: every n-th is full, or a text such as "LLLG"."""
    if window is None:
        return [False] * dims.num_layers
    pattern = keys.values.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern and not set(pattern) - {"L", "G"}:
        slides = [pattern[index % len(pattern)] == "L" for index in range(dims.num_layers)]
        return [*slides[:-1], False]
    interval = keys.size("sliding_window_pattern", 4)
    return [(index + 1) % interval != 0 for index in range(dims.num_layers)]


FAMILIES = (
    Family(
        "exaone4",
        "Exaone4ForCausalLM",
        _exaone4,
        defaults={"rms_norm_eps": 1e-5},
        names={"post_attention_layernorm": "attention_output_norm", "post_feedforward_layernorm": "mlp_output_norm"},
    ),
)
