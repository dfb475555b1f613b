"""One step of a product with weights of integers in groups."""

import triton
import triton.language as tl

from kernels.reference_grouped import TILE_INPUTS

INPUTS = tl.constexpr(TILE_INPUTS)
PARTS = tl.constexpr(4)
WIDTH = tl.constexpr(TILE_INPUTS // 4)


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
    from. The sum over a group is scaled, not the weight, so the integers are exact.
    """
    place = tl.arange(0, WIDTH)
    exists = output < out_features
    stored = (tile * out_features + output).to(tl.int64)
    words = tl.load(codes + stored[:, None] * WIDTH + place[None, :], mask=exists[:, None], other=0)
    for part in tl.static_range(PARTS):
        first = tile * INPUTS + part * WIDTH
        if part * WIDTH % GROUP == 0:
            group = first // GROUP * out_features + output
            scale = tl.load(scales + group, mask=exists, other=0.0)
            zero = tl.load(zero_points + group, mask=exists, other=0).to(tl.int16)
            sums = tl.zeros((output.shape[0], line.shape[0]), tl.float32)
        numbers = ((words >> (part * BITS)) & ((1 << BITS) - 1)).to(tl.int16) - zero[:, None]
        column = first + place
        inputs = x + line.to(tl.int64)[None, :] * in_features + column[:, None]
        taken = tl.load(inputs, mask=has_row[None, :] & (column < in_features)[:, None], other=0.0)
        sums = tl.dot(numbers.to(taken.dtype), taken, sums, input_precision="ieee")
        if (part + 1) * WIDTH % GROUP == 0:
            total += sums * scale[:, None]
    return total
