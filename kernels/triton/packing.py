"""Packs the weights of a checkpoint for products on a GPU: in their own bytes where a kernel computes with them, or
rounded while they are loaded."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernels.exchange import tensor_of
from kernels.gpu_formats import E4M3_BLOCKS, rounded_bits, rounded_group
from kernels.ops import Linear
from kernels.reference_grouped import PackedGroups, joined_groups, packed_groups, round_to_groups
from kernels.reference_rounded import (
    RoundedWeight,
    joined_rounded,
    round_weight,
    weight_of_blocks,
    weight_of_integers,
)
from kernels.triton.grouped import GroupedLinear
from kernels.triton.rounded import RoundedLinear
from kernels.triton.uploads import WeightUploads
from kernels.weights import DENSE, StoredWeight

PackDense = Callable[[Tensor, Tensor | None], Linear]


Packed = PackedGroups | RoundedWeight


def pack(
    parts: Sequence[StoredWeight],
    bias: Tensor | None,
    uploads: WeightUploads,
    dtype: torch.dtype,
    pack_dense: PackDense,
) -> Linear:
    """Concatenated weights. Parts of different formats are expanded to `dtype`, as one product has one format."""
    formats = {part.format for part in parts}
    if formats == {DENSE}:
        return pack_dense(uploads.joined([tensor_of(part.rows) for part in parts]), bias)
    packed = [_packed(part, uploads) for part in parts]
    own_bias = None if bias is None else bias.to(uploads.device)
    if len({_kind(each) for each in packed}) == 1:
        return _linear([each for each in packed if not isinstance(each, Tensor)], own_bias)
    rows = [each if isinstance(each, Tensor) else each.floats() for each in packed]
    return pack_dense(torch.cat([each.to(dtype) for each in rows]), bias)


def floats_of(weight: StoredWeight, uploads: WeightUploads) -> Tensor:
    """A weight in blocks, float32 [N, K] on the device."""
    packed = _packed(weight, uploads)
    return packed if isinstance(packed, Tensor) else packed.floats().contiguous()


def _kind(part: Packed | Tensor) -> object:
    """The property that parts of one product share."""
    if isinstance(part, PackedGroups):
        return part.bits, part.group, part.zero_points is None
    return part.codes.dtype if isinstance(part, RoundedWeight) else DENSE


def _linear(parts: Sequence[Packed], bias: Tensor | None) -> Linear:
    groups = [part for part in parts if isinstance(part, PackedGroups)]
    if groups:
        return GroupedLinear(joined_groups(groups), bias)
    return RoundedLinear(joined_rounded([part for part in parts if isinstance(part, RoundedWeight)]), bias)


def _packed(part: StoredWeight, uploads: WeightUploads) -> Packed | Tensor:
    rows = uploads.joined([tensor_of(part.rows)])
    if part.format == DENSE:
        return rows
    if part.format == "fp8":
        return round_weight(rows, torch.float8_e4m3fn)
    bits, group = rounded_bits(part.format), rounded_group(part.format, part.in_features)
    if bits is not None and group is not None:
        return round_to_groups(rows, bits, group)
    if part.rounded_inputs:
        groups = packed_groups(part.format, rows)
        return weight_of_integers(groups) or groups
    return weight_of_blocks(rows) if part.format == E4M3_BLOCKS else packed_groups(part.format, rows)
