"""The definition of weights of integers in groups on a GPU, in plain torch: their layout and their product.

    W[n, k] = scale[g, n] (q[k, n] - zero point[g, n]),  g = k // group

One layout holds what GPTQ, AWQ and compressed-tensors store, and what is quantised while it is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.gpu_formats import integers_of

TILE_INPUTS = 128
"""Inputs of a tile, the unit of the layout. A last tile may be filled up."""
_PARTS = 4
_WORDS = {4: torch.int16, 8: torch.int32}
_SCALE_BYTES, _ZERO_POINT_BYTES = 4, 1


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """A weight [N, K] of `bits` (4 or 8) in groups of 32, 64 or 128 inputs.

    codes: int16 (4 bits) or int32 (8 bits) [tiles, N, 32]; the four integers of word j of a tile, the lowest bits
        first, are those of its inputs j, j + 32, j + 64 and j + 96. A tile's rows are adjacent in memory.
    scales: float32 [tiles 128 / group, N]. zero_points: uint8 [tiles 128 / group, N]. Scales of filling are 0.
    """

    bits: int
    group: int
    in_features: int
    codes: Tensor
    scales: Tensor
    zero_points: Tensor

    @property
    def out_features(self) -> int:
        return self.codes.shape[1]

    def integers(self) -> Tensor:
        """The integers, int32 [N, K]."""
        return self._filled_integers()[:, : self.in_features]

    def floats(self) -> Tensor:
        """The weight float32 [N, K]."""
        integers = self._filled_integers().view(self.out_features, -1, self.group)
        weight = (integers - self.zero_points.T[..., None]) * self.scales.T[..., None]
        return weight.flatten(1)[:, : self.in_features]

    def _filled_integers(self) -> Tensor:
        shifts = torch.arange(_PARTS, device=self.codes.device) * self.bits
        numbers = (self.codes[:, :, None, :].int() >> shifts[:, None]) & ((1 << self.bits) - 1)
        return numbers.movedim(1, 0).reshape(self.out_features, -1)


def packed_groups(format: str, blocks: Tensor) -> PackedGroups:
    """From blocks of `kernels.integers.GroupedIntegers`, uint8 [N, bytes], on any device."""
    shape = integers_of(format)
    assert shape is not None, f"{format} holds no integers in groups"
    bits, group = shape
    block_bytes = _SCALE_BYTES + _ZERO_POINT_BYTES + group * bits // 8
    by_block = blocks.view(len(blocks), -1, block_bytes)
    scales = by_block[..., :_SCALE_BYTES].clone(memory_format=torch.contiguous_format).view(torch.float32)[..., 0]
    codes = by_block[..., _SCALE_BYTES + _ZERO_POINT_BYTES :].flatten(1)
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(1)
    return pack_groups(bits, group, codes, scales, by_block[..., _SCALE_BYTES])


def joined_groups(parts: Sequence[PackedGroups]) -> PackedGroups:
    """Weights of one format, concatenated along their outputs."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        codes=torch.cat([part.codes for part in parts], dim=1),
        scales=torch.cat([part.scales for part in parts], dim=1),
        zero_points=torch.cat([part.zero_points for part in parts], dim=1),
    )


def pack_groups(bits: int, group: int, integers: Tensor, scales: Tensor, zero_points: Tensor) -> PackedGroups:
    """From integers uint8 [N, K], scales float32 and zero points uint8 [N, K / group]."""
    out_features, in_features = integers.shape
    tiles = -(-in_features // TILE_INPUTS)
    more = tiles * TILE_INPUTS - in_features
    pad = torch.nn.functional.pad
    by_part = pad(integers, (0, more)).view(out_features, tiles, _PARTS, -1).int()
    shifts = torch.arange(_PARTS, device=integers.device, dtype=torch.int32) * bits
    words = (by_part << shifts[:, None]).sum(dim=2, dtype=torch.int32).to(_WORDS[bits])
    groups_more = (0, tiles * TILE_INPUTS // group - scales.shape[1])
    return PackedGroups(
        bits,
        group,
        in_features,
        words.transpose(0, 1).contiguous(),
        pad(scales, groups_more).T.contiguous(),
        pad(zero_points, groups_more).T.contiguous(),
    )


def grouped_linear(x: Tensor, weight: PackedGroups, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """x [T, K] times the weight transposed, plus bias [N]: computed in float32, rounded once to `dtype`."""
    product = x.float() @ weight.floats().T
    return (product if bias is None else product + bias.float()).to(dtype)


def round_to_groups(weight: Tensor, bits: int, group: int) -> PackedGroups:
    """A weight [N, K] rounded to the nearest integers between each group's least and largest number, or 0."""
    by_group = weight.float().view(len(weight), -1, group)
    low, high = by_group.amin(-1).clamp_max(0), by_group.amax(-1).clamp_min(0)
    most = (1 << bits) - 1
    scales = ((high - low) / most).clamp_min(torch.finfo(torch.float32).tiny)
    zero_points = (-low / scales).round().clamp(0, most)
    integers = ((by_group / scales[..., None]).round() + zero_points[..., None]).clamp(0, most)
    return pack_groups(bits, group, integers.to(torch.uint8).flatten(1), scales, zero_points.to(torch.uint8))
