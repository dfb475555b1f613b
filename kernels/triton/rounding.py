"""Rounds activations to 8 bits, with a scale for each token or for each 128 inputs of it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference_rounded import GROUP_INPUTS, LARGEST
from kernels.triton.tiles import require_contiguous

ROW_TILE = 2048
"""Inputs that a program holds at a time."""
_NEAREST = tl.constexpr(1.5 * 2**23)
"""Added and taken away, it leaves the nearest integer of a small number."""
_MOST = tl.constexpr(3.4028234e38)


@triton.jit
def _largest(numbers):
    """The largest magnitude of each row of [n, m]; infinity if a number is not finite: a maximum may lose a NaN."""
    size = tl.abs(numbers)
    return tl.max(tl.where(size <= _MOST, size, float("inf")), axis=1)


@triton.jit
def _scale(largest, LARGEST: tl.constexpr):
    """(the scale, what to divide by)."""
    divisor = tl.where((largest > 0.0) & (largest <= _MOST), largest / LARGEST, 1.0)
    return tl.where(largest <= _MOST, divisor, float("nan")), divisor


@triton.jit
def _codes(numbers, divisor, LARGEST: tl.constexpr, dtype: tl.constexpr):
    finite = tl.where(tl.abs(numbers) <= _MOST, numbers, 0.0)
    quotients = tl.minimum(tl.maximum(finite / divisor, -LARGEST), LARGEST)
    if dtype == tl.int8:
        return ((quotients + _NEAREST) - _NEAREST).to(tl.int32).to(dtype)
    return quotients.to(dtype)


@triton.jit
def round_rows_kernel(x, codes, scales, WIDTH: tl.constexpr, LARGEST: tl.constexpr, TILE: tl.constexpr):
    """Round the rows of x [T, WIDTH] into codes [T, WIDTH] with scales float32 [T]. Grid: (T,). Oracle:
    `kernels.reference_rounded.round_tokens`."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, TILE)[None, :]
    largest = tl.zeros((1,), tl.float32)
    for start in range(0, WIDTH, TILE):
        at = row * WIDTH + start + place
        numbers = tl.load(x + at, mask=start + place < WIDTH, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, _largest(numbers))
    scale, divisor = _scale(largest, LARGEST)
    tl.store(scales + row + tl.arange(0, 1), scale)
    for start in range(0, WIDTH, TILE):
        at = row * WIDTH + start + place
        exists = start + place < WIDTH
        numbers = tl.load(x + at, mask=exists, other=0.0).to(tl.float32)
        tl.store(codes + at, _codes(numbers, divisor[:, None], LARGEST, codes.dtype.element_ty), mask=exists)


@triton.jit
def round_groups_kernel(x, codes, scales, groups, LARGEST: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr):
    """Round each GROUP numbers of x into codes, with scales float32 [groups]. Grid: (tiles of TILE groups,). Oracle:
    `kernels.reference_rounded.round_tokens`."""
    group = tl.program_id(0) * TILE + tl.arange(0, TILE)
    exists = group < groups
    at = group.to(tl.int64)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    numbers = tl.load(x + at, mask=exists[:, None], other=0.0).to(tl.float32)
    scale, divisor = _scale(_largest(numbers), LARGEST)
    tl.store(scales + group, scale, mask=exists)
    tl.store(codes + at, _codes(numbers, divisor[:, None], LARGEST, codes.dtype.element_ty), mask=exists[:, None])


GROUPS_TILE = 16


def round_tokens(x: Tensor, dtype: torch.dtype, *, grouped: bool) -> tuple[Tensor, Tensor]:
    """`kernels.reference_rounded.round_tokens` of x [T, K]."""
    require_contiguous(x)
    rows, width = x.shape
    codes = torch.empty_like(x, dtype=dtype)
    scales = torch.empty((rows, width // GROUP_INPUTS if grouped else 1), dtype=torch.float32, device=x.device)
    if not rows:
        return codes, scales
    if grouped:
        groups = scales.numel()
        round_groups_kernel[(triton.cdiv(groups, GROUPS_TILE),)](
            x, codes, scales, groups, LARGEST=LARGEST[dtype], GROUP=GROUP_INPUTS, TILE=GROUPS_TILE, num_warps=4
        )
    else:
        round_rows_kernel[(rows,)](x, codes, scales, WIDTH=width, LARGEST=LARGEST[dtype], TILE=ROW_TILE, num_warps=8)
    return codes, scales
