"""Products of up to 16 rows with plain weights: those of a decode step, whose time is the reading of the weight.

The inputs are summed in splits whose places follow from the weight's shape alone, each by a program of its own. The
program of an output tile that is done last adds the splits' sums in their order, so a product is one launch, and its
sums do not depend on which program that is. All numbers of rows take the same tile: up to 16, a row's result depends on
neither their number nor its neighbours, to the bit. More rows go to cuBLAS, which chooses an algorithm by their number:
between those, and between the two, results are equal up to rounding, which is all that plain weights promise on a GPU.

The choice follows from shapes. A choice by times measured at start would give a model other numbers on another start.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference_ops import ReferenceLinear
from kernels.triton.capability import capability_of
from kernels.triton.dependent_launch import launch_options, launches_dependently, prefetch, wait_for_predecessor
from kernels.triton.tiles import require_contiguous
from kernels.triton.tuning_products import FEW_ROWS, LEAST_FEW_ROWS_NUMBERS, few_rows_inputs, split_tiles, tile_on

_ADDED_AT_ONCE = tl.constexpr(4)
"""Splits whose sums are loaded together."""
_LINE_BYTES = tl.constexpr(128)
"""Of a line of the L2 cache."""
_PREFETCHED = 4
"""Tiles of the weight, a power of two: those that the loop has in flight."""


@triton.jit
def _store_product(output, total, bias, row, has_row, column, has_column, out_features, DTYPE: tl.constexpr):
    if bias is not None:
        total += tl.load(bias + column, mask=has_column, other=0.0).to(tl.float32)[:, None]
    at = output + row.to(tl.int64)[None, :] * out_features + column[:, None]
    rounded = total.to(DTYPE).to(output.dtype.element_ty)
    tl.store(at, rounded, mask=has_column[:, None] & has_row[None, :])


@triton.jit(do_not_specialize=["rows", "split_tiles"])
def few_rows_kernel(
    x,
    weight,
    bias,
    output,
    partials,
    arrivals,
    rows,
    in_features,
    out_features,
    split_tiles,
    ROW_TILE: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
    PREFETCHED: tl.constexpr,
):
    """x [rows, K], rows <= ROW_TILE, times the weight [N, K] transposed, plus bias [N], if that is not None, into
    output [rows, N], rounded to x's dtype, even if output is float32.

    partials: float32 [tiles of N, splits, ROW_TILE, OUTPUT_TILE], workspace; None if there is one split. arrivals:
    int32 [tiles of N], the splits of a tile that are done; 0 before and after the launch. PREFETCHED: tiles of the
    weight that the cache is asked for before the kernel before has ended. Grid: (tiles of N, splits). Oracle:
    `kernels.reference.linear`.
    """
    tile, split = tl.program_id(0), tl.program_id(1)
    row, place, within = tl.arange(0, ROW_TILE), tl.arange(0, INPUT_TILE), tl.arange(0, OUTPUT_TILE)
    column = tile * OUTPUT_TILE + within
    has_row, has_column = row < rows, column < out_features
    weights = weight + column.to(tl.int64)[:, None] * in_features + place[None, :]
    inputs = x + row[None, :] * in_features + place[:, None]
    first = split * split_tiles * INPUT_TILE
    end = tl.minimum(first + split_tiles * INPUT_TILE, in_features)
    if PREFETCHED:
        lines: tl.constexpr = _LINE_BYTES // (weight.dtype.element_ty.primitive_bitwidth // 8)
        ahead = first + tl.arange(0, PREFETCHED * INPUT_TILE // lines) * lines
        of_column = weight + tl.minimum(column, out_features - 1).to(tl.int64)[:, None] * in_features
        prefetch(of_column + tl.minimum(ahead, in_features - 1)[None, :])
    wait_for_predecessor()
    total = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
    for start in range(first, end, INPUT_TILE):
        there = start + place < in_features
        left = tl.load(weights + start, mask=has_column[:, None] & there[None, :], other=0.0)
        right = tl.load(inputs + start, mask=has_row[None, :] & there[:, None], other=0.0)
        total = tl.dot(left, right, total, input_precision="ieee")
    dtype: tl.constexpr = x.dtype.element_ty
    if partials is None:
        _store_product(output, total, bias, row, has_row, column, has_column, out_features, dtype)
    else:
        splits = tl.num_programs(1)
        sums = partials + tile * splits * (ROW_TILE * OUTPUT_TILE) + row[None, :] * OUTPUT_TILE + within[:, None]
        tl.store(sums + split * (ROW_TILE * OUTPUT_TILE), total, mask=has_row[None, :])
        tl.debug_barrier()  # the sums of all threads are stored before the arrival is counted
        if tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == splits - 1:
            total = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
            for earliest in range(0, splits, _ADDED_AT_ONCE):
                for each in tl.static_range(_ADDED_AT_ONCE):
                    added = sums + (earliest + each) * (ROW_TILE * OUTPUT_TILE)
                    # Not from the L1 cache, which other multiprocessors' stores do not reach.
                    counts = has_row[None, :] & (earliest + each < splits)
                    total += tl.load(added, mask=counts, other=0.0, cache_modifier=".cg")
            _store_product(output, total, bias, row, has_row, column, has_column, out_features, dtype)
            tl.store(arrivals + tile, 0)


class PlainLinear(ReferenceLinear):
    """A plain weight, on its device. Maps [T, K] to [T, N]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        require_contiguous(weight)
        self._input_tile = few_rows_inputs(weight.element_size())
        tiles = triton.cdiv(self.in_features, self._input_tile)
        self._split_tiles = split_tiles(tiles, self.out_features)
        self._splits = triton.cdiv(tiles, self._split_tiles)
        self._output_tiles = triton.cdiv(self.out_features, FEW_ROWS.output_tile)
        self._arrivals = torch.zeros(self._output_tiles, dtype=torch.int32, device=weight.device)
        self._tile = tile_on(capability_of(weight.device), "plain", FEW_ROWS)
        self._is_large = weight.numel() >= LEAST_FEW_ROWS_NUMBERS

    def __call__(self, x: Tensor) -> Tensor:
        return self.by_kernel(x, x.dtype) if self._takes(x) else super().__call__(x)

    def wide(self, x: Tensor) -> Tensor:
        return self.by_kernel(x, torch.float32) if self._takes(x) else super().wide(x)

    def logits(self, x: Tensor, into: Tensor | None = None) -> Tensor:
        return self.by_kernel(x, x.dtype, into) if self._takes(x) else super().logits(x, into)

    def _takes(self, x: Tensor) -> bool:
        return self._is_large and 0 < x.shape[0] <= FEW_ROWS.row_tile

    def by_kernel(self, x: Tensor, dtype: torch.dtype, into: Tensor | None = None) -> Tensor:
        """The product of up to 16 rows in x's dtype, stored in `dtype`: that, or float32. `into`: the result's memory;
        None: new memory."""
        x, rows = x.contiguous(), x.shape[0]
        output = torch.empty((rows, self.out_features), dtype=dtype, device=x.device) if into is None else into
        partials = None
        if self._splits > 1:
            numbers = self._output_tiles * self._splits * FEW_ROWS.row_tile * FEW_ROWS.output_tile
            partials = torch.empty(numbers, dtype=torch.float32, device=x.device)
        few_rows_kernel[self._output_tiles, self._splits](
            x,
            self.weight,
            self.bias,
            output,
            partials,
            self._arrivals,
            rows,
            self.in_features,
            self.out_features,
            self._split_tiles,
            INPUT_TILE=self._input_tile,
            PREFETCHED=_PREFETCHED if launches_dependently() else 0,
            **self._tile.options,
            **launch_options(),
        )
        return output
