"""Sums of products whose inputs were split between programs, in order."""

import triton
import triton.language as tl

MERGED_TILE = 1024
"""Outputs of a program."""


@triton.jit(do_not_specialize=["rows", "splits"])
def merge_splits_kernel(partials, bias, output, rows, out_features, splits, TILE: tl.constexpr):
    """Add partials float32 [splits, rows, N] in the order of the splits, plus bias [N], into output [rows, N].

    Grid: (rows, tiles of N).
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    exists = column < out_features
    total = tl.zeros((TILE,), tl.float32)
    for split in range(0, splits):
        line = (row + split * rows) * out_features
        total += tl.load(partials + line + column, mask=exists, other=0.0)
    if bias is not None:
        total += tl.load(bias + column, mask=exists, other=0.0).to(tl.float32)
    tl.store(output + row * out_features + column, total.to(output.dtype.element_ty), mask=exists)
