"""One step of a product with weights of integers in groups."""

import triton
import triton.language as tl

from kernels.reference_grouped import TILE_INPUTS

INPUTS = tl.constexpr(TILE_INPUTS)
PARTS = tl.constexpr(4)
WIDTH = tl.constexpr(TILE_INPUTS // 4)


_MAGNITUDES = tl.constexpr(0xC8643210 - (1 << 32))
"""Twice the numbers of the codes 0 to 7 of `kernels.microscaling`, 4 bits each from the lowest on."""


@triton.jit
def _doubled(code):
    """Twice the numbers of codes of `kernels.microscaling`, int16."""
    magnitude = ((tl.full(code.shape, _MAGNITUDES, tl.int32) >> ((code & 7).to(tl.int32) * 4)) & 15).to(tl.int16)
    return tl.where(code > 7, -magnitude, magnitude)


@triton.jit
def _halved_power(exponent):
    """2^(exponent - 128) of exponents uint8, and 0 for those below 2: float32 from its bits."""
    return (tl.maximum(exponent.to(tl.int32) - 1, 0) << 23).to(tl.float32, bitcast=True)


@triton.jit
def add_tile(
    total,
    x,
    codes,
    scales,
    zero_points,
    tile,
    line,
    has_row,
    output,
    out_features,
    in_features,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
):
    """Add lines of x [n, in] times one tile of 128 inputs to `total` float32 [OUTPUT_TILE, ROW_TILE].

    The weight is the left operand: it is widened in registers, where a product of warp groups may take its left operand
    from. The sum over a group is scaled, not the weight, so the integers are exact. Without zero points codes are of
    MXFP4, and scales exponents: twice a number is an integer, too.
    """
    place = tl.arange(0, WIDTH)
    exists = output < out_features
    stored = (tile * out_features + output).to(tl.int64)
    words = tl.load(codes + stored[:, None] * WIDTH + place[None, :], mask=exists[:, None], other=0)
    for part in tl.static_range(PARTS):
        first = tile * INPUTS + part * WIDTH
        if part * WIDTH % GROUP == 0:
            group = first // GROUP * out_features + output
            if zero_points is None:
                scale = _halved_power(tl.load(scales + group, mask=exists, other=0))
            else:
                scale = tl.load(scales + group, mask=exists, other=0.0)
                zero = tl.load(zero_points + group, mask=exists, other=0).to(tl.int16)
            sums = tl.zeros((output.shape[0], line.shape[0]), tl.float32)
        numbers = ((words >> (part * BITS)) & ((1 << BITS) - 1)).to(tl.int16)
        if zero_points is None:
            numbers = _doubled(numbers)
        else:
            numbers -= zero[:, None]
        column = first + place
        inputs = x + line.to(tl.int64)[None, :] * in_features + column[:, None]
        taken = tl.load(inputs, mask=has_row[None, :] & (column < in_features)[:, None], other=0.0)
        sums = tl.dot(numbers.to(taken.dtype), taken, sums, input_precision="ieee")
        if (part + 1) * WIDTH % GROUP == 0:
            total += sums * scale[:, None]
    return total
