"""Rope settings of a config.json, in the format of transformers 5 (`rope_parameters`) and earlier (`rope_theta`,
`rope_scaling`)."""

from collections.abc import Mapping
from typing import Any, cast

from engine.checkpoints.json_keys import Keys
from engine.models.config import MAX_HEAD_DIM, MAX_ROPE_FACTOR, RopeConfig, RopeKind

_ALWAYS = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"})
"""Keys allowed for every type. `finetuned` is informational: transformers does not read it."""
_YARN = {"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"}
_KEYS_OF_KIND: Mapping[str, frozenset[str]] = {
    "default": _ALWAYS,
    "proportional": _ALWAYS,
    "linear": _ALWAYS | {"factor"},
    "dynamic": _ALWAYS | {"factor", "original_max_position_embeddings"},
    "llama3": _ALWAYS | {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": _ALWAYS | {"factor", "original_max_position_embeddings"} | _YARN,
    "longrope": _ALWAYS
    | {"factor", "original_max_position_embeddings", "attention_factor", "short_factor", "long_factor"},
}


def rope_from_config(config: Keys, head_dim: int) -> tuple[RopeConfig, int]:
    """The rope config, and the context in tokens that it reaches.

    `max_position_embeddings` is the trained context for linear and dynamic (as transformers reads it for dynamic), the
    extended one for llama3, and either for yarn, which has a key for the trained one.

    Raises:
        UnsupportedCheckpoint: an unknown type, or a key that its type does not have.
    """
    scaling = _scaling(config)
    kind = _kind(scaling)
    for key, value in scaling.values.items():
        if key not in _KEYS_OF_KIND[kind] and value is not None:
            raise scaling.refuse(key, f"is not understood with rope type {kind}")
    theta = scaling.optional_number("rope_theta")
    if theta is None:
        theta = config.number("rope_theta", 10_000.0)
    rotary_dim = _rotary_dim(scaling if "partial_rotary_factor" in scaling.values else config, head_dim)
    max_position = config.size("max_position_embeddings")
    if kind in ("default", "proportional"):
        return RopeConfig(theta=theta, kind=kind, rotary_dim=rotary_dim), max_position
    if kind == "longrope":
        return _longrope(config, scaling, theta, rotary_dim, max_position), max_position
    factor = scaling.number("factor")
    if not 1.0 <= factor <= MAX_ROPE_FACTOR:
        raise scaling.refuse("factor", f"{factor} is not in 1..{MAX_ROPE_FACTOR}")
    # transformers lets a key next to the rope settings win over the one inside.
    outer = config.optional_size("original_max_position_embeddings")
    original = outer or scaling.size("original_max_position_embeddings", max_position)
    if kind in ("linear", "dynamic"):
        original, max_position = max_position, int(max_position * factor)
    elif kind == "yarn":
        max_position = max(max_position, int(original * factor))
    rope = RopeConfig(
        theta=theta,
        kind=kind,
        factor=factor,
        original_max_position=original,
        low_freq_factor=scaling.number("low_freq_factor", None if kind == "llama3" else 1.0),
        high_freq_factor=scaling.number("high_freq_factor", None if kind == "llama3" else 4.0),
        # A zero means the default here, as in transformers.
        beta_fast=scaling.optional_number("beta_fast") or 32.0,
        beta_slow=scaling.optional_number("beta_slow") or 1.0,
        attention_factor=scaling.optional_number("attention_factor"),
        mscale=scaling.optional_number("mscale"),
        mscale_all_dim=scaling.optional_number("mscale_all_dim"),
        truncate=scaling.flag("truncate", True),
        rotary_dim=rotary_dim,
    )
    return rope, max_position


def _longrope(config: Keys, scaling: Keys, theta: float, rotary_dim: int | None, max_position: int) -> RopeConfig:
    """`factor`, which the attention factor follows from, is by default the ratio of the extended to the trained
    context."""
    outer = config.optional_size("original_max_position_embeddings")
    original = outer or scaling.size("original_max_position_embeddings", max_position)
    factor = scaling.optional_number("factor") or max(1.0, max_position / original)
    if not 1.0 <= factor <= MAX_ROPE_FACTOR:
        raise scaling.refuse("factor", f"{factor} is not in 1..{MAX_ROPE_FACTOR}")
    return RopeConfig(
        theta=theta,
        kind="longrope",
        factor=factor,
        original_max_position=original,
        attention_factor=scaling.optional_number("attention_factor"),
        rotary_dim=rotary_dim,
        short_divisors=_divisors(scaling, "short_factor"),
        long_divisors=_divisors(scaling, "long_factor"),
    )


def _divisors(scaling: Keys, key: str) -> tuple[float, ...]:
    values = scaling.values.get(key)
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_HEAD_DIM:
        raise scaling.refuse(key, "is not a short list of numbers")
    return tuple(Keys({key: value}, scaling.prefix).number(key) for value in values)


def _scaling(config: Keys) -> Keys:
    for name in ("rope_parameters", "rope_scaling"):
        values: Any = config.values.get(name)
        if values is not None:
            if not isinstance(values, dict):
                raise config.refuse(name, "is not an object")
            return Keys(values, f"{config.prefix}{name}: ")
    return Keys({}, f"{config.prefix}rope_scaling: ")


def _kind(scaling: Keys) -> RopeKind:
    key = "rope_type" if scaling.values.get("rope_type") is not None else "type"
    kind = scaling.text(key, "default")
    if kind not in _KEYS_OF_KIND:
        raise scaling.refuse(key, f"{kind!r:.80} is not one of {', '.join(_KEYS_OF_KIND)}")
    return cast(RopeKind, kind)


def _rotary_dim(keys: Keys, head_dim: int) -> int | None:
    fraction = keys.number("partial_rotary_factor", 1.0)
    if not 0.0 < fraction <= 1.0:
        raise keys.refuse("partial_rotary_factor", f"{fraction} is not in 0..1")
    rotary_dim = int(head_dim * fraction)
    return None if rotary_dim == head_dim else rotary_dim
