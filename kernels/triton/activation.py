"""Gated activations of MLPs: SiLU or GELU of one half times the other (SwiGLU and GEGLU, Shazeer, arXiv 2002.05202),
and gpt-oss's, which clamps both (arXiv 2508.10925). And of attention: its output times a sigmoid."""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference import CLAMPED_SWIGLU_LIMIT, CLAMPED_SWIGLU_SLOPE
from kernels.triton.dependent_launch import launch_options, wait_for_predecessor
from kernels.triton.tiles import MOVED_TILE, require_contiguous, warps_for

_LIMIT, _SLOPE = tl.constexpr(CLAMPED_SWIGLU_LIMIT), tl.constexpr(CLAMPED_SWIGLU_SLOPE)
_GELU_SLOPE, _GELU_CUBIC = tl.constexpr(2 * math.sqrt(2 / math.pi)), tl.constexpr(0.044715)


@triton.jit
def sigmoid(x):
    """1 / (1 + e) or e / (1 + e) with an e that does not overflow."""
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


@triton.jit
def silu_mul_kernel(gate_up, output, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """SiLU of gate_up [T, 2 WIDTH]'s first half times its second, into output [T, WIDTH].

    Grid (T, tiles of WIDTH). As in the reference, the SiLU is rounded before it is multiplied. Oracle:
    `kernels.reference.silu_mul`.
    """
    wait_for_predecessor()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    exists = column < WIDTH
    gates = gate_up + row * (2 * WIDTH) + column
    gate = tl.load(gates, mask=exists, other=0.0)
    up = tl.load(gates + WIDTH, mask=exists, other=0.0)
    wide = gate.to(tl.float32)
    # sigmoid(x) is 1 / (1 + e) or e / (1 + e) with an e that does not overflow.
    e = tl.exp(-tl.abs(wide))
    silu = (wide * tl.where(wide < 0, e, 1.0) / (1.0 + e)).to(gate.dtype)
    product = silu.to(tl.float32) * up.to(tl.float32)
    tl.store(output + row * WIDTH + column, product.to(gate.dtype), mask=exists)


@triton.jit
def gelu_mul_kernel(gate_up, output, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """GELU, in its tanh form, of gate_up [T, 2 WIDTH]'s first half times its second, into output [T, WIDTH].

    Grid (T, tiles of WIDTH). (1 + tanh(x)) / 2 is sigmoid(2 x). As in the reference, the GELU is rounded before it is
    multiplied. Oracle: `kernels.reference.gelu_mul`.
    """
    wait_for_predecessor()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    exists = column < WIDTH
    gates = gate_up + row * (2 * WIDTH) + column
    gate = tl.load(gates, mask=exists, other=0.0)
    up = tl.load(gates + WIDTH, mask=exists, other=0.0)
    wide = gate.to(tl.float32)
    gelu = (wide * sigmoid((wide + wide * wide * wide * _GELU_CUBIC) * _GELU_SLOPE)).to(gate.dtype)
    product = gelu.to(tl.float32) * up.to(tl.float32)
    tl.store(output + row * WIDTH + column, product.to(gate.dtype), mask=exists)


@triton.jit
def sigmoid_mul_kernel(x, gate, output, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """x [T, WIDTH] times the sigmoid of the gate [T, WIDTH].

    Grid (T, tiles of WIDTH). As in the reference, the sigmoid is rounded before it is multiplied. Oracle:
    `kernels.reference.sigmoid_mul`.
    """
    wait_for_predecessor()
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    exists = column < WIDTH
    place = tl.program_id(0).to(tl.int64) * WIDTH + column
    number = tl.load(x + place, mask=exists, other=0.0)
    wide = tl.load(gate + place, mask=exists, other=0.0).to(tl.float32)
    e = tl.exp(-tl.abs(wide))
    share = (tl.where(wide < 0, e, 1.0) / (1.0 + e)).to(number.dtype)
    tl.store(output + place, (number.to(tl.float32) * share.to(tl.float32)).to(number.dtype), mask=exists)


def sigmoid_mul(x: Tensor, gate: Tensor) -> Tensor:
    """`kernels.reference.sigmoid_mul` of [T, N]."""
    require_contiguous(x, gate)
    rows, width = x.shape
    output = torch.empty_like(x)
    grid = (rows, triton.cdiv(width, MOVED_TILE))
    sigmoid_mul_kernel[grid](
        x, gate, output, WIDTH=width, TILE=MOVED_TILE, num_warps=warps_for(MOVED_TILE), **launch_options()
    )
    return output


@triton.jit
def clamped_swiglu_mul_kernel(gate_up, output, WIDTH: tl.constexpr, TILE: tl.constexpr):
    """(up + 1) gate sigmoid(1.702 gate) of gate_up [T, 2 WIDTH], its first half up to 7 and its second within +-7, into
    output [T, WIDTH]: in float32, rounded once. NaN stays NaN. Grid (T, tiles of WIDTH). Oracle:
    `kernels.reference.clamped_swiglu_mul`.
    """
    wait_for_predecessor()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    exists = column < WIDTH
    gates = gate_up + row * (2 * WIDTH) + column
    gate = tl.load(gates, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(gates + WIDTH, mask=exists, other=0.0).to(tl.float32)
    gate = tl.where(gate > _LIMIT, _LIMIT, gate)
    up = tl.where(up > _LIMIT, _LIMIT, tl.where(up < -_LIMIT, -_LIMIT, up))
    product = (up + 1.0) * (gate * sigmoid(gate * _SLOPE))
    tl.store(output + row * WIDTH + column, product.to(output.dtype.element_ty), mask=exists)


def silu_mul(gate_up: Tensor) -> Tensor:
    """`kernels.reference.silu_mul` of [T, 2F]; returns [T, F]."""
    return _multiplied(silu_mul_kernel, gate_up)


def gelu_mul(gate_up: Tensor) -> Tensor:
    """`kernels.reference.gelu_mul` of [T, 2F]; returns [T, F]."""
    return _multiplied(gelu_mul_kernel, gate_up)


def clamped_swiglu_mul(gate_up: Tensor) -> Tensor:
    """`kernels.reference.clamped_swiglu_mul` of [T, 2F]; returns [T, F]."""
    return _multiplied(clamped_swiglu_mul_kernel, gate_up)


def _multiplied(kernel: Any, gate_up: Tensor) -> Tensor:
    require_contiguous(gate_up)
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    output = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    grid = (rows, triton.cdiv(width, MOVED_TILE))
    kernel[grid](gate_up, output, WIDTH=width, TILE=MOVED_TILE, num_warps=warps_for(MOVED_TILE), **launch_options())
    return output
