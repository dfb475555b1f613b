"""Rotary position factors (RoFormer, Su et al., arXiv 2104.09864) and their scaling beyond the trained context.

Powers, sines and cosines are computed in float64 and rounded, so that every processor gets the same factors. All else
is float32, as in training.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from engine.models.config import ModelConfig, RopeConfig
from kernels.arrays import FLOAT32, Floats

_CHUNK = 1024
"""Positions computed at a time; bounds the memory of float64 intermediates."""


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin of every position, float32 [positions, D'/2]."""

    cos: Floats
    sin: Floats


def rope_table(config: RopeConfig, head_dim: int, max_positions: int) -> RopeTable:
    """The factors of positions below `max_positions`."""
    dim = head_dim if config.kind == "proportional" else config.rotary_dim or head_dim
    config = _for_length(config, max_positions)
    scale = np.float32(attention_factor(config))
    cos, sin = (np.empty((max_positions, dim // 2), FLOAT32) for _ in range(2))
    for first in range(0, max_positions, _CHUNK):
        positions = np.arange(first, min(first + _CHUNK, max_positions), dtype=FLOAT32)
        angles = _angles(config, dim, positions).astype(np.float64)
        chunk = slice(first, first + len(positions))
        cos[chunk], sin[chunk] = np.cos(angles), np.sin(angles)
    cos *= scale
    sin *= scale
    return RopeTable(cos, sin)


def layer_ropes(config: ModelConfig, max_positions: int) -> tuple[RopeTable, ...]:
    """The factors of each layer. Layers with the same rope share them."""
    ropes = [(config.rope_of(layer), config.heads_of(layer).dim) for layer in range(config.num_layers)]
    tables = {
        (rope, head_dim): _no_rope(max_positions) if rope is None else rope_table(rope, head_dim, max_positions)
        for rope, head_dim in dict.fromkeys(ropes)
    }
    return tuple(tables[rope] for rope in ropes)


def _no_rope(max_positions: int) -> RopeTable:
    """Factors of no dimensions, for layers without rotary embedding."""
    return RopeTable(np.empty((max_positions, 0), FLOAT32), np.empty((max_positions, 0), FLOAT32))


def _for_length(config: RopeConfig, max_positions: int) -> RopeConfig:
    """longrope with its divisors chosen. The choice is the model's, not a sequence's: keys that were cached with one
    set of frequencies are wrong with the other. vLLM chooses in the same way."""
    if config.kind != "longrope":
        return config
    long = max_positions > _original_window(config)
    return replace(config, frequency_divisors=config.long_divisors if long else config.short_divisors)


def _angles(config: RopeConfig, dim: int, positions: Floats) -> Floats:
    """Rotation angles, float32 [positions, dim / 2]."""
    if config.kind == "dynamic":
        return positions[:, None] * _dynamic_frequencies(config, dim, positions)
    return np.outer(positions, frequencies(config, dim))


def frequencies(config: RopeConfig, dim: int) -> Floats:
    """Radians per position of each rotated pair, float32 [dim / 2]. Not defined for `dynamic`, where they depend on the
    position."""
    base = _inverse_powers(np.full(1, config.theta, FLOAT32), dim)
    match config.kind:
        case "linear":
            stretched = base / np.float32(config.factor)
        case "llama3":
            stretched = _llama3(config, base)
        case "yarn":
            stretched = _yarn(config, base, dim)
        case "proportional":
            rotated = np.arange(dim // 2) < (config.rotary_dim or dim) // 2
            stretched = np.where(rotated, base, np.float32(0))
        case _:
            stretched = base
    if config.frequency_divisors is not None:
        stretched = stretched / np.array(config.frequency_divisors, FLOAT32)
    return stretched


def attention_factor(config: RopeConfig) -> float:
    """The factor of cos and sin: YaRN's (arXiv 2309.00071, section 3.4) or longrope's (arXiv 2402.13753); 1 for every
    other kind."""
    if config.kind not in ("yarn", "longrope"):
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    if config.kind == "longrope":
        return math.sqrt(1 + math.log(config.factor) / math.log(_original_window(config)))
    if config.mscale and config.mscale_all_dim:
        return _magnitude(config.factor, config.mscale) / _magnitude(config.factor, config.mscale_all_dim)
    return _magnitude(config.factor, 1.0)


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _inverse_powers(theta: Floats, dim: int) -> Floats:
    """1 / theta^(2i / dim) of pair i: float32 [dim / 2] for one theta, [n, dim / 2] for theta [n, 1]."""
    exponents = np.arange(0, dim, 2, dtype=FLOAT32) / np.float32(dim)
    powers: Floats = (theta.astype(np.float64) ** exponents).astype(FLOAT32)
    return np.float32(1) / powers


def _original_window(config: RopeConfig) -> int:
    assert config.original_max_position is not None, "every stretching kind has a trained window"
    return config.original_max_position


def _llama3(config: RopeConfig, base: Floats) -> Floats:
    """Llama 3.1's `apply_scaling`: long wavelengths are interpolated, short ones unchanged, those between blended."""
    rotations = _original_window(config) * base / (2 * math.pi)
    blend: Floats = (rotations - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    blend = blend.clip(0, 1)
    return (1 - blend) * base / config.factor + blend * base


def _yarn(config: RopeConfig, base: Floats, dim: int) -> Floats:
    """YaRN's NTK-by-parts interpolation (arXiv 2309.00071, section 3.2): a ramp over the dimensions between the two
    betas."""

    def dimension_at(rotations: float) -> float:
        return dim * math.log(_original_window(config) / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = dimension_at(config.beta_fast), dimension_at(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = max(high - low, 0.001)
    interpolate: Floats = ((np.arange(dim // 2, dtype=FLOAT32) - low) / width).clip(0, 1)
    return base / config.factor * interpolate + base * (1 - interpolate)


def _dynamic_frequencies(config: RopeConfig, dim: int, positions: Floats) -> Floats:
    """Dynamic NTK scaling: the base grows with the length reached. float32 [positions, dim / 2].

    The base of a position past the trained context is that of a sequence that ends there, as in token-by-token
    generation. It depends on the position alone, so chunked prefill and cached prefixes give the same result as one
    pass.
    """
    window = _original_window(config)
    length = (positions + 1).clip(min=window)
    growth = config.factor * length / window - (config.factor - 1)
    theta = config.theta * growth.astype(np.float64) ** (dim / (dim - 2))
    return _inverse_powers(theta.astype(FLOAT32)[:, None], dim)
