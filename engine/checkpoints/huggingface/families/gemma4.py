"""The text of Gemma 4: sliding and full layers with heads of their own, dense or with experts next to the MLP.

Files say of full layers what differs either by keys of their own (`global_head_dim`, `num_global_key_value_heads`) or
layer by layer (`per_layer_config`), as transformers writes them.
"""

from collections.abc import Mapping
from typing import Any

from engine.checkpoints.gemma4_layers import common_fields, experts_config, kv_sources
from engine.checkpoints.huggingface.families.family import (
    EXPERT_COUNT_KEYS,
    Dims,
    Family,
    Fields,
    Stacked,
    expert_count,
    layer_types,
    ropes_by_type,
    windows_by_type,
)
from engine.checkpoints.huggingface.families.gemma import ACTIVATIONS, softcaps
from engine.checkpoints.json_keys import Keys
from kernels.layout import HeadShape

_ROPES = {
    "full_attention": {"rope_type": "proportional", "rope_theta": 1_000_000.0, "partial_rotary_factor": 0.25},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}
_LAYER_KEYS = ("head_dim", "num_key_value_heads")
"""Keys that `per_layer_config` may have of a layer."""


def _gemma4(keys: Keys, dims: Dims) -> Fields:
    if keys.values.get("use_bidirectional_attention") not in (None, "vision"):  # of images, which are not served
        raise keys.refuse("use_bidirectional_attention", "text that attends to later tokens is not understood")
    slides = layer_types(keys, dims) or [(index + 1) % 6 != 0 for index in range(dims.num_layers)]
    slides[-1] = False
    heads = _heads(keys, dims, slides)
    bias = keys.flag("attention_bias")
    ropes = Keys({**keys.values, "rope_parameters": keys.values.get("rope_parameters") or _ROPES}, keys.prefix)
    return {
        "qkv_bias": bias,
        "o_bias": bias,
        **common_fields(dims.hidden_size),
        "windows": windows_by_type(keys, slides),
        "layer_heads": heads,
        "layer_input_size": _layer_inputs(keys),
        **_shared(keys, dims, slides),
        **softcaps(keys, scores=None, logits=None),
        **(_experts(keys, dims) if keys.flag("enable_moe_block") else {}),
        **ropes_by_type(ropes, dims, slides, 1_000_000.0, "", 10_000.0, heads[-1].dim),
    }


def _layer_inputs(keys: Keys) -> int:
    size, vocab_size = keys.size("hidden_size_per_layer_input", 0, minimum=0), keys.size("vocab_size")
    if size and keys.size("vocab_size_per_layer_input", 262_144) != vocab_size:
        raise keys.refuse("vocab_size_per_layer_input", f"is not vocab_size, {vocab_size}")
    return size


def _shared(keys: Keys, dims: Dims, slides: list[bool]) -> Fields:
    count = keys.size("num_kv_shared_layers", 0, minimum=0)
    if not count:
        return {}
    sources = kv_sources(slides, count)
    if sources is None:
        raise keys.refuse("num_kv_shared_layers", f"{count} leaves no layer of each kind with keys and values")
    inner = keys.size("intermediate_size")
    wide = 2 * inner if keys.flag("use_double_wide_mlp") else inner
    sizes = (inner,) * (dims.num_layers - count) + (wide,) * count
    return {"kv_sources": sources, "layer_mlp_sizes": sizes}


def _heads(keys: Keys, dims: Dims, slides: list[bool]) -> tuple[HeadShape, ...]:
    shared = keys.flag("attention_k_eq_v")
    sliding = HeadShape(keys.size("num_key_value_heads"), dims.head_dim)
    own_kv_heads = keys.size("num_global_key_value_heads", sliding.kv_heads) if shared else sliding.kv_heads
    full = HeadShape(own_kv_heads, keys.size("global_head_dim", 512), not shared)
    layers = _by_layer(keys, dims)
    if layers is not None:
        full_layers = [layer for layer, slide in enumerate(slides) if not slide]
        stated = {
            HeadShape(
                layers.get(layer, {}).get("num_key_value_heads", sliding.kv_heads),
                layers.get(layer, {}).get("head_dim", sliding.dim),
                not shared,
            )
            for layer in full_layers
        }
        if len(stated) != 1 or set(layers) - set(full_layers):
            raise keys.refuse("per_layer_config", "is not the same in all full layers, and in these alone")
        full = stated.pop()
    return tuple(sliding if slide else full for slide in slides)


def _by_layer(keys: Keys, dims: Dims) -> Mapping[int, Mapping[str, int]] | None:
    """The sizes in `per_layer_config` by layer; None if the file does not have it."""
    if keys.values.get("per_layer_config") is None:
        return None
    layers = {}
    for name, values in keys.mapping("per_layer_config").items():
        if not (name.isdecimal() and int(name) < dims.num_layers and isinstance(values, dict)):
            raise keys.refuse("per_layer_config", f"{name!r:.80} is not a layer with its keys")
        own = Keys(values, f"{keys.prefix}per_layer_config: {name}: ")
        own.only(_LAYER_KEYS, ())
        layers[int(name)] = {key: own.size(key) for key in _LAYER_KEYS if values.get(key) is not None}
    return layers


def _experts(keys: Keys, dims: Dims) -> Fields:
    count = expert_count(keys, 0)
    experts = experts_config(
        count,
        keys.size("top_k_experts", maximum=max(count, 1)),
        keys.size("moe_intermediate_size"),
        keys.size("intermediate_size"),
        dims.hidden_size,
    )
    return {"experts": experts, "sparse_layers": (True,) * dims.num_layers}


_COMMON: dict[str, Any] = {
    "fields": _gemma4,
    "understood": EXPERT_COUNT_KEYS
    | {"final_logit_softcapping", "moe_intermediate_size", "per_layer_config", "use_bidirectional_attention"},
    "names": {
        "post_attention_layernorm": "attention_output_norm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "mlp_output_norm",
        "router": "mlp.gate",
        r"router\.proj": "mlp.gate",
        "pre_feedforward_layernorm_2": "mlp.experts_norm",
        "post_feedforward_layernorm_2": "mlp.experts_output_norm",
        "post_feedforward_layernorm_1": "mlp.shared_output_norm",
    },
    "sparse_names": {
        r"mlp\.(gate|up|down)_proj": r"mlp.shared_expert.\1_proj",
        # Of quantised files, which have a matrix for each expert.
        r"(moe\.)?experts\.(\d+)\.(gate|up|down)_proj": r"mlp.experts.\2.\3_proj",
    },
    "stacked": {
        "experts.gate_up_proj": Stacked(("gate_proj.weight", "up_proj.weight")),
        "experts.down_proj": Stacked(("down_proj.weight",)),
        # Of compressed-tensors, where its writer quantises the matrices of all experts at once.
        "experts.gate_up_proj_packed": Stacked(("gate_proj.weight_packed", "up_proj.weight_packed")),
        "experts.down_proj_packed": Stacked(("down_proj.weight_packed",)),
        "experts.gate_up_proj_scale": Stacked(("gate_proj.weight_scale", "up_proj.weight_scale")),
        "experts.down_proj_scale": Stacked(("down_proj.weight_scale",)),
    },
    "activation_key": "hidden_activation",
    "activations": ACTIVATIONS,
}
_DEFAULTS = {
    "vocab_size": 262_144,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "hidden_size_per_layer_input": 256,
}
_UNIFIED = _DEFAULTS | {
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
_PREFIXES: Mapping[str, str] = {"model.language_model.": "model."}
_IGNORED = (r"model\.(vision_tower|audio_tower|embed_vision|embed_audio|vision_embedder)\.",)

FAMILIES = (
    Family("gemma4_text", "Gemma4ForCausalLM", defaults=_DEFAULTS, **_COMMON),
    Family("gemma4_unified_text", "Gemma4UnifiedForCausalLM", defaults=_UNIFIED, **_COMMON),
    Family(
        "gemma4",
        "Gemma4ForConditionalGeneration",
        defaults=_DEFAULTS,
        text_types=frozenset({"gemma4_text"}),
        prefixes=_PREFIXES,
        ignored=_IGNORED,
        **_COMMON,
    ),
    Family(
        "gemma4_unified",
        "Gemma4UnifiedForConditionalGeneration",
        defaults=_UNIFIED,
        text_types=frozenset({"gemma4_unified_text"}),
        prefixes=_PREFIXES,
        ignored=_IGNORED,
        **_COMMON,
    ),
)
