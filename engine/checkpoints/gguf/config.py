"""Reads a `ModelConfig` from GGUF metadata and the tensor list.

Keys under the architecture's name are its hyper-parameters: an unknown one rejects the file.
"""

import math
from dataclasses import dataclass, replace

from engine.checkpoints.gguf.architecture import Architecture, Dims, Fields
from engine.checkpoints.gguf.architectures import ARCHITECTURES
from engine.checkpoints.gguf.header import Header
from engine.checkpoints.json_keys import Keys
from engine.models.config import MAX_LAYERS, MAX_ROPE_FACTOR, ModelConfig, RopeConfig, UnsupportedCheckpoint

_UNDERSTOOD = frozenset(
    {
        "attention.causal",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.value_length",
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "rope.dimension_count",
        "rope.freq_base",
        "rope.scale_linear",
        "rope.scaling.attn_factor",
        "rope.scaling.factor",
        "rope.scaling.finetuned",
        "rope.scaling.original_context_length",
        "rope.scaling.type",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "vocab_size",
    }
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class Divisors:
    """Divisors of rope frequencies, which a file has as tensors: those of every length, or longrope's two sets."""

    plain: tuple[float, ...] | None = None
    short: tuple[float, ...] = ()
    long: tuple[float, ...] = ()


def config_from_gguf(header: Header, divisors: Divisors) -> ModelConfig:
    """The model's config.

    Raises:
        UnsupportedCheckpoint: a key is missing, malformed or needs arithmetic that is not supported.
    """
    everything = Keys(header.metadata, "metadata: ")
    architecture, keys = architecture_of(everything)
    hidden, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    layers = keys.size("block_count", maximum=MAX_LAYERS)
    if architecture.draft_layers:
        layers -= keys.size("nextn_predict_layers", 0, minimum=0, maximum=layers - 1)
    head_dim = _head_dim(keys, architecture, hidden // heads)
    rope, max_position = _rope(keys, architecture.family, head_dim, divisors)
    tensors, one = header.tensors, _first_of_lists(keys, architecture)
    common: Fields = {
        "family": architecture.family,
        "vocab_size": _vocab_size(header),
        "hidden_size": hidden,
        "intermediate_size": one.size("feed_forward_length"),
        "num_layers": layers,
        "num_heads": heads,
        "num_kv_heads": one.optional_size("attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "max_position": max_position,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope": rope,
        "windows": (None,) * layers,
        "qkv_bias": "blk.0.attn_q.bias" in tensors,
        "o_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "tie_embeddings": "output.weight" not in tensors,
        "eos_token_ids": _end_ids(everything),
        "bos_token_id": everything.token_id("tokenizer.ggml.bos_token_id"),
    }
    own = architecture.fields(keys, Dims(hidden, layers, heads, head_dim, rope, tensors))
    windows = {"windows": _windows(keys, layers)} if architecture.family == "llama" else {}
    if "windows" not in own and not windows and keys.size("attention.sliding_window", 0, minimum=0):
        raise keys.refuse("attention.sliding_window", "does not say which layers slide")
    return ModelConfig(**(common | windows | own))


def _first_of_lists(keys: Keys, architecture: Architecture) -> Keys:
    """The keys with the first value of those that the architecture may state by layer."""
    values = {name: keys.values[name] for name in architecture.by_layer if name in keys.values}
    firsts = {name: stated[0] for name, stated in values.items() if isinstance(stated, list) and stated}
    return Keys({**keys.values, **firsts}, keys.prefix)


def _head_dim(keys: Keys, architecture: Architecture, default: int) -> int:
    if architecture.latent:  # newer files state the length of a key in the cache, and with it that of a head's
        return keys.optional_size("attention.key_length_mla") or keys.size("attention.key_length")
    head_dim = keys.optional_size("attention.key_length") or default
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise keys.refuse("attention.value_length", f"is not the key length {head_dim}")
    return head_dim


def architecture_of(everything: Keys) -> tuple[Architecture, Keys]:
    """The architecture of a file's metadata, and the keys under its name without that prefix."""
    name = everything.text("general.architecture")
    if name not in ARCHITECTURES:
        raise everything.refuse("general.architecture", f"{name!r:.80} is not one of {', '.join(ARCHITECTURES)}")
    kind = everything.text("general.type", "model")
    if kind != "model":
        raise everything.refuse("general.type", f"{kind!r:.80} is not a model")
    prefix = f"{name}."
    values = {key.removeprefix(prefix): everything.values[key] for key in everything.values if key.startswith(prefix)}
    keys = Keys(values, f"metadata: {prefix}")
    for key, value in values.items():
        if key not in _UNDERSTOOD | ARCHITECTURES[name].understood and value not in (0, False, "", []):
            raise keys.refuse(key, "is not understood")
    if not keys.flag("attention.causal", True):
        raise keys.refuse("attention.causal", "false: only decoders are served")
    return ARCHITECTURES[name], Keys({**ARCHITECTURES[name].defaults, **values}, keys.prefix)


def _rope(keys: Keys, family: str, head_dim: int, divisors: Divisors) -> tuple[RopeConfig, int]:
    """The rope config, and the context in tokens that it reaches."""
    rotary_dim = keys.size("rope.dimension_count", head_dim)
    if family == "llama" and rotary_dim != head_dim:
        # The rows of q and k are interleaved over the whole head there, which a part of it cannot undo.
        raise keys.refuse("rope.dimension_count", f"{rotary_dim} of {head_dim} dimensions")
    max_position = keys.size("context_length")
    plain = RopeConfig(
        theta=keys.number("rope.freq_base", 10_000.0),
        rotary_dim=None if rotary_dim == head_dim else rotary_dim,
        frequency_divisors=divisors.plain,
    )
    if divisors.short or divisors.long:
        return _longrope(keys, plain, divisors, max_position), max_position
    kind = keys.text("rope.scaling.type", "linear" if "rope.scale_linear" in keys.values else "none")
    factor = keys.optional_number("rope.scaling.factor") or keys.number("rope.scale_linear", 1.0)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return plain, max_position
    if not 1.0 <= factor <= MAX_ROPE_FACTOR:
        raise keys.refuse("rope.scaling.factor", f"{factor} is not in 1..{MAX_ROPE_FACTOR}")
    # The trained window, where the file does not tell it apart from the stretched one.
    original = keys.optional_size("rope.scaling.original_context_length") or max_position
    stretched = replace(plain, factor=factor, original_max_position=original)
    match kind:
        case "linear":
            rope = replace(stretched, kind="linear")
        case "yarn":
            rope = replace(
                stretched,
                kind="yarn",
                beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
                attention_factor=_yarn_attention_factor(keys, factor),
            )
        case _:
            raise keys.refuse("rope.scaling.type", f"{kind!r:.80} is not one of none, linear, yarn")
    return rope, max(max_position, int(original * factor))


def _longrope(keys: Keys, plain: RopeConfig, divisors: Divisors, max_position: int) -> RopeConfig:
    original = keys.optional_size("rope.scaling.original_context_length") or max_position
    return replace(
        plain,
        kind="longrope",
        factor=min(max(1.0, max_position / original), MAX_ROPE_FACTOR),
        original_max_position=original,
        attention_factor=keys.optional_number("rope.scaling.attn_factor"),
        short_divisors=divisors.short,
        long_divisors=divisors.long,
    )


def _yarn_attention_factor(keys: Keys, factor: float) -> float | None:
    """The attention factor. GGUF's value multiplies YaRN's own scale of the logits (0.1 ln factor + 1); `RopeConfig`'s
    replaces it."""
    scale = keys.number("rope.scaling.attn_factor", 1.0)
    return None if scale == 1.0 else scale * (0.1 * math.log(factor) + 1.0)


def _windows(keys: Keys, layers: int) -> tuple[int | None, ...]:
    window = keys.size("attention.sliding_window", 0, minimum=0)
    return (window or None,) * layers


def _vocab_size(header: Header) -> int:
    """Rows of the embedding. The tokenizer may have fewer tokens (padding), never more."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise UnsupportedCheckpoint("tensor token_embd.weight is missing")
    rows, tokens = embedding.shape[0], "tokenizer.ggml.tokens"
    if tokens in header.metadata and header.metadata.length(tokens) > rows:
        raise UnsupportedCheckpoint(f"metadata: {tokens}: more than the {rows} rows of token_embd.weight")
    return rows


def _end_ids(everything: Keys) -> tuple[int, ...]:
    ids = (everything.token_id(f"tokenizer.ggml.{key}") for key in _END_KEYS)
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))
