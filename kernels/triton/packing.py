"""Packs the weights of a checkpoint for products on a GPU: in their own bytes where a kernel computes with them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kernels.exchange import tensor_of
from kernels.ops import Linear
from kernels.reference_grouped import PackedGroups, packed_groups, takes_groups
from kernels.triton.grouped import GroupedLinear
from kernels.weights import DENSE, StoredWeight

PackDense = Callable[[Tensor, Tensor | None], Linear]


def takes(format: str, in_features: int) -> bool:
    """Whether a kernel computes with weights of that format and width."""
    return takes_groups(format) and in_features % 16 == 0


def pack(
    parts: Sequence[StoredWeight],
    bias: Tensor | None,
    device: torch.device,
    dtype: torch.dtype,
    pack_dense: PackDense,
) -> Linear:
    """Concatenated weights. Parts of different formats are expanded to `dtype`, as one product has one format."""
    formats = {part.format for part in parts}
    if formats == {DENSE}:
        return pack_dense(torch.cat([tensor_of(part.rows) for part in parts]), bias)
    packed = [_packed(part, device) for part in parts]
    groups = [each for each in packed if isinstance(each, PackedGroups)]
    if len(formats) == 1:
        return GroupedLinear(joined(groups), None if bias is None else bias.to(device))
    rows = [each.floats() if isinstance(each, PackedGroups) else each for each in packed]
    return pack_dense(torch.cat([each.to(device, dtype) for each in rows]), bias)


def joined(parts: Sequence[PackedGroups]) -> PackedGroups:
    """Weights of one format, concatenated along their outputs."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(
        first,
        codes=torch.cat([part.codes for part in parts], dim=1),
        scales=torch.cat([part.scales for part in parts], dim=1),
        zero_points=torch.cat([part.zero_points for part in parts], dim=1),
    )


def _packed(part: StoredWeight, device: torch.device) -> PackedGroups | Tensor:
    rows = tensor_of(part.rows).to(device)
    return rows if part.format == DENSE else packed_groups(part.format, rows)
