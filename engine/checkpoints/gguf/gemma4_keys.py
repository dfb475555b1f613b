"""The GGUF architecture of Gemma 4: sliding and full layers with heads of their own, dense or with experts.

Keys and tensors are those of llama.cpp's converter. The length of a key without a suffix is that of full layers. Those
have the proportional rope: `rope_freqs` has a divisor of 1 for each pair that rotates, and 1e30 for the others.
"""

from dataclasses import replace

from engine.checkpoints.gemma4_layers import common_fields, experts_config, kv_sources
from engine.checkpoints.gguf.architecture import Architecture, Dims, Fields
from engine.checkpoints.gguf.expert_keys import EXPERT_KEYS
from engine.checkpoints.json_keys import Keys
from engine.models.config import RopeConfig, UnsupportedCheckpoint
from engine.models.experts import MAX_EXPERTS
from kernels.layout import HeadShape

_SLIDES, _SHARED = "attention.sliding_window_pattern", "attention.shared_kv_layers"
_KV_HEADS, _INNER = "attention.head_count_kv", "feed_forward_length"
_STANDS_STILL = 1e30
"""Divisor of the frequency of a pair that does not rotate."""


def _gemma4(keys: Keys, dims: Dims) -> Fields:
    slides = _sliding(keys, dims)
    heads = _heads(keys, dims, slides)
    full, sliding = _full_rope(dims), _sliding_rope(keys)
    window = keys.size("attention.sliding_window")
    return {
        "num_kv_heads": heads[0].kv_heads,
        "head_dim": keys.size("attention.key_length_swa"),
        "activation": "gelu_tanh",
        **common_fields(dims.hidden_size),
        "logit_softcap": keys.optional_number("final_logit_softcapping"),
        "windows": tuple(window if slide else None for slide in slides),
        "rope": full,
        "layer_ropes": tuple(sliding if slide else full for slide in slides) if any(slides) else (),
        "layer_heads": heads,
        "layer_input_size": keys.size("embedding_length_per_layer_input", 0, minimum=0),
        **_shared(keys, dims, slides),
        **_experts(keys, dims),
    }


def _sliding(keys: Keys, dims: Dims) -> list[bool]:
    """Whether each layer slides."""
    flags = keys.values.get(_SLIDES)
    if (
        not isinstance(flags, list)
        or len(flags) != dims.num_layers
        or not all(isinstance(each, bool) for each in flags)
    ):
        raise keys.refuse(_SLIDES, f"not a list of {dims.num_layers} flags")
    return flags


def _sizes(keys: Keys, name: str, layers: int) -> tuple[int, ...]:
    """The size of each layer: a list, or one number for all."""
    stated = keys.values.get(name)
    if not isinstance(stated, list):
        return (keys.size(name),) * layers
    if len(stated) != layers:
        raise keys.refuse(name, f"{len(stated)} sizes for {layers} layers")
    return tuple(Keys({name: each}, keys.prefix).size(name) for each in stated)


def _heads(keys: Keys, dims: Dims, slides: list[bool]) -> tuple[HeadShape, ...]:
    sliding_dim = keys.size("attention.key_length_swa")
    if keys.size("attention.value_length_swa", sliding_dim) != sliding_dim:
        raise keys.refuse("attention.value_length_swa", f"is not the key length {sliding_dim}")
    first_full = slides.index(False) if False in slides else 0
    has_values = f"blk.{first_full}.attn_v.weight" in dims.tensors
    heads = tuple(
        HeadShape(kv_heads, sliding_dim) if slide else HeadShape(kv_heads, dims.head_dim, has_values)
        for kv_heads, slide in zip(_sizes(keys, _KV_HEADS, dims.num_layers), slides, strict=True)
    )
    if len(set(heads)) != len(set(slides)):
        raise keys.refuse(_KV_HEADS, "is not the same in all layers of one kind")
    return heads


def _full_rope(dims: Dims) -> RopeConfig:
    divisors = dims.rope.frequency_divisors
    if divisors is None or len(divisors) != dims.head_dim // 2:
        raise UnsupportedCheckpoint(f"tensor rope_freqs.weight: not {dims.head_dim // 2} divisors of frequencies")
    rotated = sum(divisor == 1 for divisor in divisors)
    still = divisors[rotated:]
    if any(divisor != 1 for divisor in divisors[:rotated]) or any(divisor < _STANDS_STILL / 10 for divisor in still):
        raise UnsupportedCheckpoint("tensor rope_freqs.weight: divisors are not 1 for the first pairs and 1e30 after")
    rotary_dim = None if not still else 2 * rotated
    return replace(dims.rope, kind="proportional", rotary_dim=rotary_dim, frequency_divisors=None)


def _sliding_rope(keys: Keys) -> RopeConfig:
    dim = keys.size("attention.key_length_swa")
    rotated = keys.size("rope.dimension_count_swa", dim)
    return RopeConfig(theta=keys.number("rope.freq_base_swa", 10_000.0), rotary_dim=None if rotated == dim else rotated)


def _shared(keys: Keys, dims: Dims, slides: list[bool]) -> Fields:
    """The last layers share KV, and may have wider MLPs."""
    count = keys.size(_SHARED, 0, minimum=0)
    sizes = _sizes(keys, _INNER, dims.num_layers)
    if not count:
        if len(set(sizes)) > 1:
            raise keys.refuse(_INNER, "is not the same in all layers")
        return {}
    sources = kv_sources(slides, count)
    if sources is None:
        raise keys.refuse(_SHARED, f"{count} leaves no layer of each kind with keys and values")
    return {"kv_sources": sources, "layer_mlp_sizes": sizes}


def _experts(keys: Keys, dims: Dims) -> Fields:
    count = keys.size("expert_count", 0, minimum=0, maximum=MAX_EXPERTS)
    if not count:
        return {}
    experts = experts_config(
        count,
        keys.size("expert_used_count", maximum=count),
        keys.size("expert_feed_forward_length"),
        _sizes(keys, _INNER, dims.num_layers)[0],
        dims.hidden_size,
    )
    return {"experts": experts, "sparse_layers": (True,) * dims.num_layers}


GEMMA4 = Architecture(
    "gemma4_text",
    _gemma4,
    EXPERT_KEYS
    | {
        _SHARED,
        _SLIDES,
        "attention.key_length_swa",
        "attention.value_length_swa",
        "embedding_length_per_layer_input",
        "final_logit_softcapping",
        "rope.dimension_count_swa",
        "rope.freq_base_swa",
    },
    names={
        "post_attention_norm": "attention_output_norm",
        "post_ffw_norm": "mlp_output_norm",
        "pre_ffw_norm_2": "mlp.experts_norm",
        "post_ffw_norm_1": "mlp.shared_output_norm",
        "post_ffw_norm_2": "mlp.experts_output_norm",
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
    },
    sparse_names={
        "ffn_gate": "mlp.shared_expert.gate_proj",
        "ffn_up": "mlp.shared_expert.up_proj",
        "ffn_down": "mlp.shared_expert.down_proj",
    },
    whole_names={
        "layer_output_scale.weight": "layer_scalar",
        "ffn_gate_inp.scale": "mlp.gate.scale",
        "ffn_down_exps.scale": "mlp.gate.per_expert_scale",
    },
    by_layer=frozenset({_KV_HEADS, _INNER}),
)
