"""Products of rounded activations and weights in e4m3 or int8, on the tensor cores' 8-bit instructions.

Tiles of 128 inputs are summed by themselves and added in float32 (in int32 for integers): the tensor cores keep fewer
bits of long e4m3 sums (DeepSeek-V3, arXiv 2412.19437, section 3.3). Splits of the inputs are as in
`kernels.triton.grouped`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference_rounded import GROUP_INPUTS, RoundedWeight
from kernels.triton.capability import capability_of
from kernels.triton.rounding import round_tokens
from kernels.triton.splits import MERGED_TILE, merge_splits_kernel
from kernels.triton.tuning_products import (
    MOST_PARTIAL_ROWS,
    ROUNDED_FEW,
    ROUNDED_MANY,
    kind_of_codes,
    split_tiles,
    tile_on,
)

INPUTS = tl.constexpr(GROUP_INPUTS)


@triton.jit
def split_sums(
    x,
    codes,
    x_scales,
    scales,
    split,
    split_tiles,
    row,
    has_row,
    column,
    has_column,
    in_features,
    out_features,
    GROUPED: tl.constexpr,
):
    """One split's sum float32 [OUTPUT_TILE, ROW_TILE], scaled. `row`: lines of x and x_scales; codes [N, K]."""
    whole: tl.constexpr = tl.int32 if x.dtype.element_ty == tl.int8 else tl.float32
    place = tl.arange(0, INPUTS)
    tiles = in_features // INPUTS
    sums = tl.zeros((column.shape[0], row.shape[0]), tl.float32 if GROUPED else whole)
    weights = codes + column.to(tl.int64)[:, None] * in_features + place[None, :]
    inputs = x + row.to(tl.int64)[None, :] * in_features + place[:, None]
    for tile in range(split * split_tiles, tl.minimum((split + 1) * split_tiles, tiles)):
        left = tl.load(weights + tile * INPUTS, mask=has_column[:, None], other=0.0)
        right = tl.load(inputs + tile * INPUTS, mask=has_row[None, :], other=0.0)
        if GROUPED:
            scale = tl.load(scales + tile * out_features + column, mask=has_column, other=0.0)
            x_scale = tl.load(x_scales + row * tiles + tile, mask=has_row, other=0.0)
            sums += tl.dot(left, right, out_dtype=whole).to(tl.float32) * scale[:, None] * x_scale[None, :]
        else:
            sums += tl.dot(left, right, out_dtype=whole)
    if GROUPED:
        return sums
    else:
        scale = tl.load(scales + column, mask=has_column, other=0.0)
        x_scale = tl.load(x_scales + row, mask=has_row, other=0.0)
        return sums.to(tl.float32) * scale[:, None] * x_scale[None, :]


@triton.jit(do_not_specialize=["rows", "split_tiles"])
def rounded_linear_kernel(
    x,
    x_scales,
    codes,
    scales,
    bias,
    output,
    rows,
    in_features,
    out_features,
    split_tiles,
    GROUPED: tl.constexpr,
    ROW_TILE: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    PARTIAL: tl.constexpr,
):
    """Rounded x [rows, K] times codes [N, K] transposed into output [rows, N]; with PARTIAL, the sum of each split into
    output float32 [splits, rows, N], without the bias.

    x_scales float32 [rows, 1], scales [1, N]; with GROUPED [rows, K / 128] and [K / 128, N]. Grid: (tiles of N, tiles
    of rows, splits or 1). Oracle: `kernels.reference_rounded.rounded_linear`, with `round_tokens` and
    `merge_splits_kernel`.
    """
    row = tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)
    column = tl.program_id(0) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
    has_row, has_column = row < rows, column < out_features
    if PARTIAL:
        total = split_sums(
            x,
            codes,
            x_scales,
            scales,
            tl.program_id(2),
            split_tiles,
            row,
            has_row,
            column,
            has_column,
            in_features,
            out_features,
            GROUPED,
        )
    else:
        total = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
        for split in range(0, tl.cdiv(in_features // INPUTS, split_tiles)):
            total += split_sums(
                x,
                codes,
                x_scales,
                scales,
                split,
                split_tiles,
                row,
                has_row,
                column,
                has_column,
                in_features,
                out_features,
                GROUPED,
            )
    line = row.to(tl.int64) * out_features
    if PARTIAL:
        line += tl.program_id(2).to(tl.int64) * rows * out_features
    elif bias is not None:
        total += tl.load(bias + column, mask=has_column, other=0.0).to(tl.float32)[:, None]
    there = has_column[:, None] & has_row[None, :]
    tl.store(output + line[None, :] + column[:, None], total.to(output.dtype.element_ty), mask=there)


class RoundedLinear:
    """A weight in e4m3 or int8, on its device. Rounds x [T, K] and maps it to [T, N]."""

    def __init__(self, weight: RoundedWeight, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.out_features, weight.in_features
        self.weight, self.bias = weight, bias
        tiles = self.in_features // GROUP_INPUTS
        self._split_tiles = split_tiles(tiles, self.out_features)
        self._splits = -(-tiles // self._split_tiles)
        kind, capability = kind_of_codes(weight.codes.dtype), capability_of(weight.codes.device)
        self._few = tile_on(capability, kind, ROUNDED_FEW)
        self._many = tile_on(capability, kind, ROUNDED_MANY[weight.grouped])

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, x.dtype)

    def wide(self, x: Tensor) -> Tensor:
        return self._product(x, torch.float32)

    @property
    def logits_dtype(self) -> torch.dtype:
        return torch.float32

    def logits(self, x: Tensor, into: Tensor | None = None) -> Tensor:
        return self._product(x, torch.float32, into)

    def _product(self, x: Tensor, dtype: torch.dtype, into: Tensor | None = None) -> Tensor:
        rows, columns, weight = x.shape[0], self.out_features, self.weight
        codes, scales = round_tokens(x, weight.codes.dtype, grouped=weight.grouped)
        output = torch.empty((rows, columns), dtype=dtype, device=x.device) if into is None else into
        if not rows:
            return output
        partial = self._splits > 1 and rows <= MOST_PARTIAL_ROWS
        sums = x.new_empty((self._splits, rows, columns), dtype=torch.float32) if partial else output
        launch = self._few if rows <= self._few.row_tile else self._many
        grid = (
            triton.cdiv(columns, launch.output_tile),
            triton.cdiv(rows, launch.row_tile),
            self._splits if partial else 1,
        )
        rounded_linear_kernel[grid](
            codes,
            scales,
            weight.codes,
            weight.scales,
            None if partial else self.bias,
            sums,
            rows,
            self.in_features,
            columns,
            self._split_tiles,
            GROUPED=weight.grouped,
            PARTIAL=partial,
            **launch.options,
        )
        if partial:
            merge_splits_kernel[rows, triton.cdiv(columns, MERGED_TILE)](
                sums, self.bias, output, rows, columns, self._splits, TILE=MERGED_TILE, num_warps=4
            )
        return output
