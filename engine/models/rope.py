"""Rotary position factors and the ways to stretch them past the trained window."""

import math

import torch
from torch import Tensor

from engine.models.config import RopeConfig
from kernels.ops import RopeRows


class RopeTable:
    """cos and sin for every position of the window, gathered once a step and shared by all layers.

    cos, sin: [positions, D'/2], where the model computes; on a CPU in float32, else in the compute dtype.
    """

    def __init__(
        self, config: RopeConfig, head_dim: int, max_positions: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        angles = _angles(config, config.rotary_dim or head_dim, max_positions)
        scale = attention_factor(config)
        kept = torch.float32 if device.type == "cpu" else dtype
        self.cos = (angles.cos() * scale).to(device, kept)
        self.sin = (angles.sin() * scale).to(device, kept)
        self._dtype = dtype

    def rows(self, positions: Tensor) -> RopeRows:
        """Factors of tokens at `positions` int64 [T]."""
        cos, sin = (table[positions][:, None].to(self._dtype) for table in (self.cos, self.sin))
        return RopeRows(cos, sin)


def _angles(config: RopeConfig, dim: int, max_positions: int) -> Tensor:
    """float32 [max_positions, dim / 2]."""
    positions = torch.arange(max_positions, dtype=torch.float32)
    if config.kind == "dynamic":
        return positions[:, None] * _dynamic_frequencies(config, dim, positions)
    return torch.outer(positions, frequencies(config, dim))


def frequencies(config: RopeConfig, dim: int) -> Tensor:
    """Radians a position for each rotated pair, float32 [dim / 2]; one for all positions (not for `dynamic`)."""
    base = _base_frequencies(config.theta, dim)
    match config.kind:
        case "linear":
            stretched = base / config.factor
        case "llama3":
            stretched = _llama3(config, base)
        case "yarn":
            stretched = _yarn(config, base, dim)
        case _:
            stretched = base
    if config.frequency_divisors is not None:
        stretched = stretched / torch.tensor(config.frequency_divisors)
    return stretched


def attention_factor(config: RopeConfig) -> float:
    """What yarn multiplies cos and sin with (arXiv 2309.00071, section 3.4); 1 for every other kind."""
    if config.kind != "yarn":
        return 1.0
    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return _magnitude(config.factor, config.mscale) / _magnitude(config.factor, config.mscale_all_dim)
    return _magnitude(config.factor, 1.0)


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _base_frequencies(theta: float, dim: int) -> Tensor:
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def _original_window(config: RopeConfig) -> int:
    assert config.original_max_position is not None, "every stretching kind has a trained window"
    return config.original_max_position


def _llama3(config: RopeConfig, base: Tensor) -> Tensor:
    """Long wavelengths are interpolated, short ones kept, those between blended (Llama 3.1's `apply_scaling`)."""
    rotations = _original_window(config) * base / (2 * math.pi)
    blend = (rotations - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
    blend = blend.clamp(0, 1)
    return (1 - blend) * base / config.factor + blend * base


def _yarn(config: RopeConfig, base: Tensor, dim: int) -> Tensor:
    """NTK by parts (arXiv 2309.00071, section 3.2): a ramp over the dimensions between the two betas."""

    def dimension_at(rotations: float) -> float:
        return dim * math.log(_original_window(config) / (rotations * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = dimension_at(config.beta_fast), dimension_at(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = max(high - low, 0.001)
    interpolate = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return base / config.factor * interpolate + base * (1 - interpolate)


def _dynamic_frequencies(config: RopeConfig, dim: int, positions: Tensor) -> Tensor:
    """NTK-aware scaling whose base grows with the length reached, float32 [positions, dim / 2].

    The base of a position past the trained window is that of a sequence ending there: what generating token by token
    gives. It depends on the position alone, so a chunked prefill and a cached prefix mean the same as one pass.
    """
    window = _original_window(config)
    length = (positions + 1).clamp(min=window)
    growth = config.factor * length / window - (config.factor - 1)
    theta = config.theta * growth ** (dim / (dim - 2))
    return 1.0 / theta[:, None] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
