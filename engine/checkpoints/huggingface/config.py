"""Reads a `ModelConfig` from Hugging Face's config.json.

An unknown key that would change the arithmetic rejects the checkpoint; the many that would not (dropout,
initialisation, caching hints) are ignored. Defaults are those of transformers' config classes.
"""

from collections.abc import Mapping
from typing import Any

from engine.checkpoints.huggingface.families import FAMILIES, Family
from engine.checkpoints.huggingface.families.family import Dims, Fields
from engine.checkpoints.json_keys import Keys
from engine.models.config import MAX_LAYERS, Activation, ModelConfig

_PREFIX = "config.json: "
_TEXT = "text_config"
_OUTER_KEYS = ("tie_word_embeddings", "eos_token_id", "bos_token_id")
"""Keys of a multimodal model that count for its text."""
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
"""Keys that change the arithmetic in some architectures: rejected unless null, false, 0 or empty, or unless the family
understands them."""


def config_from_json(config: Mapping[str, Any], generation_config: Mapping[str, Any] | None = None) -> ModelConfig:
    """The config of a parsed config.json. `generation_config`: the parsed generation_config.json, if there is one.

    Raises:
        UnsupportedCheckpoint: a key is missing, malformed or needs arithmetic that is not supported.
    """
    family = _family(Keys(config, _PREFIX))
    given = _of_text(family, Keys(config, _PREFIX))
    missing = {name: value for name, value in family.defaults.items() if given.values.get(name) is None}
    keys = Keys({**given.values, **missing}, given.prefix)
    for name in _FOREIGN_KEYS:
        if name not in family.understood and given.values.get(name) not in (None, False, 0, [], {}):
            raise keys.refuse(name, f"{given.values[name]!r:.80} is not understood")
    if not keys.flag("is_causal", True):
        raise keys.refuse("is_causal", "false: only decoders are served")
    layers = keys.size("num_hidden_layers", maximum=MAX_LAYERS)
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    dims = Dims(hidden, layers, heads, _head_dim(keys, hidden, heads))
    common: Fields = {
        "family": family.model_type,
        "vocab_size": keys.size("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": keys.size("intermediate_size"),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": keys.optional_size("num_key_value_heads") or heads,
        "head_dim": dims.head_dim,
        "rms_norm_eps": keys.number("rms_norm_eps", 1e-6),
        "windows": (None,) * layers,
        "activation": _activation(family, keys),
        "tie_embeddings": keys.flag("tie_word_embeddings"),
        "eos_token_ids": _eos(keys, generation_config),
        "bos_token_id": keys.token_id("bos_token_id"),
    }
    return ModelConfig(**(common | family.fields(keys, dims)))


def _of_text(family: Family, keys: Keys) -> Keys:
    """The keys of a multimodal model's text: those of `text_config`, and some next to it. Older files have no such
    object: all keys lie together."""
    if not family.text_types or keys.values.get(_TEXT) is None:
        return keys
    text = Keys(keys.mapping(_TEXT), f"{keys.prefix}{_TEXT}.")
    named = text.text("model_type", min(family.text_types))
    if named not in family.text_types:
        raise text.refuse("model_type", f"{named!r:.80} is not {' or '.join(sorted(family.text_types))}")
    outer = {name: keys.values[name] for name in _OUTER_KEYS if keys.values.get(name) is not None}
    return Keys({**text.values, **outer}, text.prefix)


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    head_dim = keys.optional_size("head_dim")
    if head_dim is not None:
        return head_dim
    if hidden % heads:
        raise keys.refuse("head_dim", f"missing, and hidden_size {hidden} is not a multiple of {heads} heads")
    return hidden // heads


def _activation(family: Family, keys: Keys) -> Activation:
    name = keys.text(family.activation_key, "silu")
    if name not in family.activations:
        raise keys.refuse(family.activation_key, f"{name!r:.80} is not {' or '.join(family.activations)}")
    return family.activations[name]


def _family(keys: Keys) -> Family:
    model_type = keys.text("model_type")
    family = FAMILIES.get(model_type)
    if family is None:
        raise keys.refuse("model_type", f"{model_type!r:.80} is not one of {', '.join(FAMILIES)}")
    named = keys.values.get("architectures")
    if named is not None and named != [family.architecture]:
        raise keys.refuse("architectures", f"{named!r:.80} is not {family.architecture}")
    return family


def _eos(keys: Keys, generation_config: Mapping[str, Any] | None) -> tuple[int, ...]:
    """End token ids. Those of generation_config.json take precedence: instruction models end turns with tokens that the
    base model's config lacks."""
    if generation_config is not None:
        ids = Keys(generation_config, "generation_config.json: ").token_ids("eos_token_id")
        if ids:
            return ids
    return keys.token_ids("eos_token_id")
