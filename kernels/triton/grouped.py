"""Products with weights of integers in groups, each with a scale and a zero point (GPTQ, Frantar et al., arXiv
2210.17323; AWQ, Lin et al., arXiv 2306.00978), of 4 or 8 bits. Activations keep their dtype (W4A16, W8A16).

The inputs are summed in splits of a fixed number of tiles, and the splits in order. Few rows give each split a program
of its own, to have enough of them; many rows add the splits within a program. Both add the same numbers in the same
order, so a row's result depends on neither the number of rows nor its neighbours.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference_grouped import PackedGroups
from kernels.triton.capability import capability_of
from kernels.triton.grouped_step import INPUTS, add_tile
from kernels.triton.splits import MERGED_TILE, merge_splits_kernel
from kernels.triton.tiles import require_contiguous
from kernels.triton.tuning_products import GROUPED_FEW, GROUPED_MANY, MOST_PARTIAL_ROWS, split_tiles, tile_on


@triton.jit(do_not_specialize=["rows", "split_tiles"])
def grouped_linear_kernel(
    x,
    codes,
    scales,
    zero_points,
    bias,
    output,
    rows,
    in_features,
    out_features,
    split_tiles,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    PARTIAL: tl.constexpr,
):
    """x [rows, K] times the packed weight [N, K] transposed into output [rows, N]; with PARTIAL, the sum of each split
    into output float32 [splits, rows, N], without the bias.

    Weights as in `kernels.reference_grouped.PackedGroups`. Grid: (tiles of N, tiles of rows, splits or 1). Oracle:
    `kernels.reference_grouped.grouped_linear`, with `merge_splits_kernel`.
    """
    row = tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)
    column = tl.program_id(0) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
    exists = column < out_features
    tiles = tl.cdiv(in_features, INPUTS)
    if PARTIAL:
        first_split = tl.program_id(2)
        end_split = first_split + 1
    else:
        first_split = 0
        end_split = tl.cdiv(tiles, split_tiles)
    total = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
    for split in range(first_split, end_split):
        part = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
        for tile in range(split * split_tiles, tl.minimum((split + 1) * split_tiles, tiles)):
            part = add_tile(
                part,
                x,
                codes,
                scales,
                zero_points,
                tile,
                row,
                row < rows,
                column,
                out_features,
                in_features,
                GROUP,
                BITS,
            )
        total += part
    line = row.to(tl.int64) * out_features
    if PARTIAL:
        line += tl.program_id(2).to(tl.int64) * rows * out_features
    elif bias is not None:
        total += tl.load(bias + column, mask=exists, other=0.0).to(tl.float32)[:, None]
    there = exists[:, None] & (row < rows)[None, :]
    tl.store(output + line[None, :] + column[:, None], total.to(output.dtype.element_ty), mask=there)


class GroupedLinear:
    """A weight of integers in groups, on its device. Maps [T, K] to [T, N]."""

    def __init__(self, weight: PackedGroups, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.out_features, weight.in_features
        self.weight, self.bias = weight, bias
        self._split_tiles = split_tiles(weight.codes.shape[0], weight.out_features)
        self._splits = -(-weight.codes.shape[0] // self._split_tiles)
        capability = capability_of(weight.codes.device)
        self._few, self._many = (tile_on(capability, "grouped", tile) for tile in (GROUPED_FEW, GROUPED_MANY))

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
        require_contiguous(x)
        rows, columns = x.shape[0], self.out_features
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
        weight = self.weight
        grouped_linear_kernel[grid](
            x,
            weight.codes,
            weight.scales,
            weight.zero_points,
            None if partial else self.bias,
            sums,
            rows,
            self.in_features,
            columns,
            self._split_tiles,
            GROUP=weight.group,
            BITS=weight.bits,
            PARTIAL=partial,
            **launch.options,
        )
        if partial:
            merge_splits_kernel[rows, triton.cdiv(columns, MERGED_TILE)](
                sums, self.bias, output, rows, columns, self._splits, TILE=MERGED_TILE, num_warps=4
            )
        return output
