"""The definition of weights of integers in groups on a GPU, in plain torch: their layout and their product.

    W[n, k] = scale[g, n] (q[k, n] - zero point[g, n]),  g = k // group

One layout holds what GPTQ, AWQ and compressed-tensors store, and what is quantised while it is loaded; and MXFP4, whose
codes are floats of 4 bits (see `kernels.microscaling`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from kernels.gpu_formats import integers_of
from kernels.microscaling import BLOCK_INPUTS, FORMAT, VALUES

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

    MXFP4: 4 bits in groups of 32. codes: numbers of `kernels.microscaling`. scales: uint8, the exponents of two plus
    127; less than 2 stands for a scale of 0. zero_points: None.
    """

    bits: int
    group: int
    in_features: int
    codes: Tensor
    scales: Tensor
    zero_points: Tensor | None

    @property
    def out_features(self) -> int:
        return self.codes.shape[1]

    def integers(self) -> Tensor:
        """The integers, int32 [N, K]."""
        return self._filled_integers()[:, : self.in_features]

    def floats(self) -> Tensor:
        """The weight float32 [N, K]."""
        integers = self._filled_integers().view(self.out_features, -1, self.group)
        if self.zero_points is None:
            numbers = torch.from_numpy(VALUES).to(self.codes.device)[integers.long()]
            powers = torch.exp2(self.scales.T.float() - 127)
            weight = numbers * torch.where(self.scales.T > 1, powers, 0.0)[..., None]
        else:
            weight = (integers - self.zero_points.T[..., None]) * self.scales.T[..., None]
        return weight.flatten(1)[:, : self.in_features]

    def _filled_integers(self) -> Tensor:
        shifts = torch.arange(_PARTS, device=self.codes.device) * self.bits
        numbers = (self.codes[:, :, None, :].int() >> shifts[:, None]) & ((1 << self.bits) - 1)
        return numbers.movedim(1, 0).reshape(self.out_features, -1)


def packed_groups(format: str, blocks: Tensor) -> PackedGroups:
    """From blocks of `kernels.integers.GroupedIntegers` or `kernels.microscaling.blocks`, uint8 [N, bytes], on any
    device."""
    if format == FORMAT:
        by_block = blocks.view(len(blocks), -1, 1 + BLOCK_INPUTS // 2)
        codes = torch.cat((by_block[..., 1:] & 15, by_block[..., 1:] >> 4), dim=-1).flatten(1)
        return pack_groups(4, BLOCK_INPUTS, codes, by_block[..., 0], None)
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
        zero_points=_merged([part.zero_points for part in parts], partial(torch.cat, dim=1)),
    )


def stacked_groups(parts: Sequence[PackedGroups]) -> PackedGroups:
    """Weights of one format and shape; their tensors with an axis of `parts` before the others."""
    return replace(
        parts[0],
        codes=torch.stack([part.codes for part in parts]),
        scales=torch.stack([part.scales for part in parts]),
        zero_points=_merged([part.zero_points for part in parts], torch.stack),
    )


def _merged(zero_points: Sequence[Tensor | None], merge: Callable[[list[Tensor]], Tensor]) -> Tensor | None:
    there = [each for each in zero_points if each is not None]
    assert len(there) in (0, len(zero_points)), "weights of different formats"
    return merge(there) if there else None


def pack_groups(bits: int, group: int, integers: Tensor, scales: Tensor, zero_points: Tensor | None) -> PackedGroups:
    """From codes uint8 [N, K], scales and zero points [N, K / group], as in `PackedGroups`."""
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
        None if zero_points is None else pad(zero_points, groups_more).T.contiguous(),
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
