"""Products of each head with a weight of its own, all heads in one launch.

An output is summed over the inputs in one order, whatever the number of rows, as in `kernels.triton.experts`.
"""

from collections.abc import Iterator, Sequence
from typing import overload

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops import Linear
from kernels.reference_ops import ReferenceLinear
from kernels.triton.tuning_products import BY_HEAD_INPUTS, by_head_launch


@triton.jit(do_not_specialize=["rows"])
def by_head_kernel(
    x,
    weight,
    output,
    rows,
    x_row_stride,
    x_head_stride,
    output_row_stride,
    output_head_stride,
    IN_FEATURES: tl.constexpr,
    OUT_FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    """x [rows, heads, K] times each head's weight [heads, N, K] transposed into output [rows, heads, N].

    Strides are in elements, of rows and of heads; the innermost is 1, and the weight contiguous. Grid: (tiles of N,
    tiles of rows, heads). Oracle: `kernels.reference_latent.by_head`.
    """
    head = tl.program_id(2).to(tl.int64)
    row = tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE)
    column = tl.program_id(0) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
    place = tl.arange(0, INPUT_TILE)
    has_row, has_column = row < rows, column < OUT_FEATURES
    weights = weight + (head * OUT_FEATURES + column)[:, None] * IN_FEATURES + place[None, :]
    inputs = x + head * x_head_stride + row.to(tl.int64)[None, :] * x_row_stride + place[:, None]
    total = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
    for start in range(0, IN_FEATURES, INPUT_TILE):
        there = start + place < IN_FEATURES
        left = tl.load(weights + start, mask=has_column[:, None] & there[None, :], other=0.0)
        right = tl.load(inputs + start, mask=has_row[None, :] & there[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    at = row.to(tl.int64)[None, :] * output_row_stride + head * output_head_stride + column[:, None]
    tl.store(output + at, total.to(output.dtype.element_ty), mask=has_column[:, None] & has_row[None, :])


class HeadLinears(Sequence[Linear]):
    """The products of the heads of a layer, [heads, N, K] in one tensor. As a sequence: each by itself."""

    def __init__(self, linears: Sequence[Linear]) -> None:
        weights = []
        for linear in linears:
            assert isinstance(linear, ReferenceLinear), "products by head are of plain numbers"
            assert linear.bias is None, "products by head have no bias"
            weights.append(linear.weight)
        self.weight = torch.stack(weights)

    def into(self, output: Tensor, x: Tensor) -> None:
        """x [T, heads, K] to output [T, heads, N], both with adjacent inner elements."""
        heads, out_features, in_features = self.weight.shape
        rows = x.shape[0]
        assert x.shape[1:] == (heads, in_features), f"inputs {tuple(x.shape)} for {heads} heads of {in_features}"
        assert output.shape == (rows, heads, out_features), f"outputs {tuple(output.shape)}"
        assert x.stride(2) == output.stride(2) == 1, "elements of a head with gaps"
        launch = by_head_launch(rows)
        grid = (triton.cdiv(out_features, launch.output_tile), triton.cdiv(rows, launch.row_tile), heads)
        by_head_kernel[grid](
            x,
            self.weight,
            output,
            rows,
            x.stride(0),
            x.stride(1),
            output.stride(0),
            output.stride(1),
            IN_FEATURES=in_features,
            OUT_FEATURES=out_features,
            INPUT_TILE=BY_HEAD_INPUTS,
            **launch.options,
        )

    def __len__(self) -> int:
        return len(self.weight)

    @overload
    def __getitem__(self, index: int) -> Linear: ...

    @overload
    def __getitem__(self, index: slice) -> list[Linear]: ...

    def __getitem__(self, index: int | slice) -> Linear | list[Linear]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return ReferenceLinear(self.weight[index], None)

    def __iter__(self) -> Iterator[Linear]:
        return (self[index] for index in range(len(self)))
