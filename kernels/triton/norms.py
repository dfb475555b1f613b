"""RMS norms (Zhang and Sennrich, arXiv 1910.07467) of rows, alone and fused with the residual sum and the norm of what
is added: one program a row, read once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops import CheckedRows
from kernels.triton.dependent_launch import launch_options, wait_for_predecessor
from kernels.triton.tiles import require_contiguous, tile_above, warps_for

_MOST_WIDTH = 16_384
"""Maximum elements of a row, as one program holds it in registers."""


@triton.jit
def normed(wide, weight, eps, WIDTH: tl.constexpr):
    """float32 rows [..., TILE], zero past WIDTH, divided by their root mean square, times `weight`.

    As in the reference, the normalised value is rounded to the weight's dtype before the weight is applied.
    """
    scale = tl.rsqrt(tl.sum(wide * wide, axis=-1, keep_dims=True) / WIDTH + eps)
    return (wide * scale).to(weight.dtype).to(tl.float32) * weight.to(tl.float32)


@triton.jit
def rms_norm_kernel(x, weight, output, eps, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """Norm of the rows of x [T, WIDTH] into output. Grid (T). Oracle: `kernels.reference.rms_norm`."""
    wait_for_predecessor()
    column = tl.arange(0, TILE)
    exists = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(x + at, mask=exists, other=0.0).to(tl.float32)
    weights = tl.load(weight + column, mask=exists, other=0.0)
    tl.store(output + at, normed(row, weights, eps, WIDTH).to(output.dtype.element_ty), mask=exists)


@triton.jit
def add_rms_norm_kernel(
    x, x_weight, residual, weight, output, finite, eps, scalar, WIDTH: tl.constexpr, TILE: tl.constexpr
):
    """Add the rows of x [T, WIDTH], normed by `x_weight`, to `residual`, in place, times `scalar`, and norm the results
    by `weight` into output; store in finite int8 [T] whether each is finite. None: no norm, no flags, no factor.

    Grid (T). The normed row, the sum and the product are each rounded to their dtype. Oracles:
    `kernels.reference.add_rms_norm` and `kernels.reference_ops.ReferenceOps.add_branch`.
    """
    wait_for_predecessor()
    column = tl.arange(0, TILE)
    exists = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(x + at, mask=exists, other=0.0).to(tl.float32)
    if x_weight is not None:
        weights = tl.load(x_weight + column, mask=exists, other=0.0)
        row = normed(row, weights, eps, WIDTH).to(x.dtype.element_ty).to(tl.float32)
    total = tl.load(residual + at, mask=exists, other=0.0).to(tl.float32)
    rounded = (total + row).to(residual.dtype.element_ty)
    if scalar is not None:
        rounded = (rounded.to(tl.float32) * scalar).to(residual.dtype.element_ty)
    tl.store(residual + at, rounded, mask=exists)
    if weight is not None:
        weights = tl.load(weight + column, mask=exists, other=0.0)
        next_row = normed(rounded.to(tl.float32), weights, eps, WIDTH).to(output.dtype.element_ty)
        tl.store(output + at, next_row, mask=exists)
        if finite is not None:
            broken = tl.where(tl.abs(next_row.to(tl.float32)) < float("inf"), 0, 1)  # nor is NaN less
            tl.store(finite + tl.program_id(0), (1 - tl.max(tl.where(exists, broken, 0))).to(tl.int8))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`kernels.reference.rms_norm` of x [..., H], H up to 16,384."""
    require_contiguous(x, weight)
    width = _width(x)
    output = torch.empty_like(x)
    tile = tile_above(width)
    grid = (x.numel() // width,)
    rms_norm_kernel[grid](x, weight, output, eps, WIDTH=width, TILE=tile, num_warps=warps_for(tile), **launch_options())
    return output


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`kernels.reference.add_rms_norm` of x [..., H], H up to 16,384; the sum overwrites `residual`."""
    return add_branch(x, None, residual, weight, eps)


def add_branch(
    branch: Tensor,
    branch_norm: Tensor | None,
    residual: Tensor,
    next_norm: Tensor | None,
    eps: float,
    scalar: float = 1.0,
    into: CheckedRows | None = None,
) -> tuple[Tensor, Tensor]:
    """`kernels.reference_ops.ReferenceOps.add_branch` of rows [..., H], H up to 16,384; overwrites `residual`."""
    require_contiguous(branch, residual, *(norm for norm in (branch_norm, next_norm) if norm is not None))
    width = _width(branch)
    output = None if next_norm is None else torch.empty_like(branch) if into is None else into.rows
    tile = tile_above(width)
    add_rms_norm_kernel[(branch.numel() // width,)](
        branch,
        branch_norm,
        residual,
        next_norm,
        output,
        None if into is None else into.finite,
        eps,
        None if scalar == 1 else scalar,
        WIDTH=width,
        TILE=tile,
        num_warps=warps_for(tile),
        **launch_options(),
    )
    return residual if output is None else output, residual


def _width(x: Tensor) -> int:
    if x.shape[-1] > _MOST_WIDTH:
        raise ValueError(f"a norm of {x.shape[-1]} elements: one program holds {_MOST_WIDTH}")
    return x.shape[-1]
