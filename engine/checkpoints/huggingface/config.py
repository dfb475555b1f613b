"""Reads a `ModelConfig` from Hugging Face's config.json.

An unknown key that would change the arithmetic rejects the checkpoint; the many that would not (dropout,
initialisation, caching hints) are ignored. Defaults are those of transformers' config classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.checkpoints.huggingface.rope import rope_from_config
from engine.checkpoints.json_keys import Keys
from engine.models.config import MAX_LAYERS, Family, ModelConfig

_ARCHITECTURES: Mapping[str, tuple[Family, str]] = {
    "llama": ("llama", "LlamaForCausalLM"),
    "mistral": ("mistral", "MistralForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
}

_FOREIGN_KEYS = (
    "attention_multiplier",
    "attention_out_bias",
    "attention_sink_size",
    "attn_logit_softcapping",
    "attn_temperature_tuning",
    "auto_map",
    "clip_qkv",
    "dual_chunk_attention_config",
    "embedding_multiplier",
    "expert_interval",
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "moe_intermediate_size",
    "n_routed_experts",
    "no_rope_layers",
    "num_experts",
    "num_local_experts",
    "per_layer_config",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "rope_interleaved",
    "scale_depth",
    "scale_emb",
    "use_bidirectional_attention",
    "use_mrope",
    "use_qk_norm",
)
"""Keys that change the arithmetic in related architectures: rejected unless null, false, 0 or empty."""


@dataclass(frozen=True, slots=True)
class _Attention:
    """The differences in attention between families."""

    qkv_bias: bool
    o_bias: bool
    qk_norm: bool
    default_head_dim: int | None = None


def config_from_json(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> ModelConfig:
    """The config of a parsed config.json. `generation_config`: the parsed generation_config.json, if there is one.

    Raises:
        UnsupportedCheckpoint: a key is missing, malformed or needs arithmetic that is not supported.
    """
    keys = Keys(config, "config.json: ")
    family = _family(keys)
    for name in _FOREIGN_KEYS:
        if config.get(name) not in (None, False, 0, [], {}):
            raise keys.refuse(name, f"{config[name]!r:.80} is not understood")
    if not keys.flag("is_causal", True):
        raise keys.refuse("is_causal", "false: only decoders are served")
    if keys.text("hidden_act", "silu") != "silu":
        raise keys.refuse("hidden_act", f"{config['hidden_act']!r:.80} is not silu")

    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    layers = keys.size("num_hidden_layers", maximum=MAX_LAYERS)
    attention = _attention(family, keys)
    head_dim = keys.optional_size("head_dim") or attention.default_head_dim
    if head_dim is None:
        if hidden % heads:
            raise keys.refuse("head_dim", f"missing, and hidden_size {hidden} is not a multiple of {heads} heads")
        head_dim = hidden // heads
    rope, max_position = rope_from_config(keys, head_dim)
    return ModelConfig(
        family=family,
        vocab_size=keys.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=keys.size("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=keys.optional_size("num_key_value_heads") or heads,
        head_dim=head_dim,
        max_position=max_position,
        rms_norm_eps=keys.number("rms_norm_eps", 1e-6),
        rope=rope,
        windows=_windows(family, keys, layers),
        qkv_bias=attention.qkv_bias,
        o_bias=attention.o_bias,
        mlp_bias=family == "llama" and keys.flag("mlp_bias"),
        qk_norm=attention.qk_norm,
        tie_embeddings=keys.flag("tie_word_embeddings"),
        eos_token_ids=_eos(keys, generation_config),
        bos_token_id=keys.token_id("bos_token_id"),
    )


def _family(keys: Keys) -> Family:
    model_type = keys.text("model_type")
    if model_type not in _ARCHITECTURES:
        raise keys.refuse("model_type", f"{model_type!r:.80} is not one of {', '.join(_ARCHITECTURES)}")
    family, architecture = _ARCHITECTURES[model_type]
    named = keys.values.get("architectures")
    if named is not None and named != [architecture]:
        raise keys.refuse("architectures", f"{named!r:.80} is not {architecture}")
    return family


def _attention(family: Family, keys: Keys) -> _Attention:
    match family:
        case "llama":
            bias = keys.flag("attention_bias")
            return _Attention(qkv_bias=bias, o_bias=bias, qk_norm=False)
        case "mistral":
            return _Attention(qkv_bias=False, o_bias=False, qk_norm=False)
        case "qwen2":
            return _Attention(qkv_bias=True, o_bias=False, qk_norm=False)
        case "qwen3":
            bias = keys.flag("attention_bias")
            return _Attention(qkv_bias=bias, o_bias=bias, qk_norm=True, default_head_dim=128)


def _windows(family: Family, keys: Keys, layers: int) -> tuple[int | None, ...]:
    """Sliding windows by layer: in all of Mistral's layers; in Qwen's from `max_window_layers` on, or as `layer_types`
    says."""
    types = _layer_types(keys, layers)
    if family == "mistral":
        window = keys.optional_size("sliding_window", absent=4096)
        if types is not None and types != [window is not None] * layers:
            raise keys.refuse("layer_types", "Mistral slides in every layer or in none")
        return (window,) * layers
    if family == "llama" or not keys.flag("use_sliding_window"):
        if types is not None and any(types):
            raise keys.refuse("layer_types", "sliding layers without a sliding window")
        return (None,) * layers
    window = keys.optional_size("sliding_window", absent=4096)
    if window is None:
        raise keys.refuse("sliding_window", "null, but use_sliding_window is true")
    if types is None:
        first = keys.size("max_window_layers", 28, minimum=0)
        types = [index >= first for index in range(layers)]
    return tuple(window if slides else None for slides in types)


def _layer_types(keys: Keys, layers: int) -> list[bool] | None:
    """Whether each layer has a sliding window; None if the file does not say."""
    types = keys.values.get("layer_types")
    if types is None:
        return None
    known = {"full_attention": False, "sliding_attention": True}
    if not isinstance(types, list) or len(types) != layers:
        raise keys.refuse("layer_types", f"not a list of {layers} names")
    for name in types:
        if not isinstance(name, str) or name not in known:
            raise keys.refuse("layer_types", f"{name!r:.80} is not understood")
    return [known[name] for name in types]


def _eos(keys: Keys, generation_config: Mapping[str, Any] | None) -> tuple[int, ...]:
    """End token ids. Those of generation_config.json take precedence: instruction models end turns with tokens that the
    base model's config lacks."""
    if generation_config is not None:
        ids = Keys(generation_config, "generation_config.json: ").token_ids("eos_token_id")
        if ids:
            return ids
    return keys.token_ids("eos_token_id")
