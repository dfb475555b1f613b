"""Products with the weights of experts: each tile of sorted assignments with those of its expert.

The outputs of an assignment are summed over the inputs in one order, whatever the number of tokens, so they depend on
neither their number nor the neighbours in the tile.
"""

import triton
import triton.language as tl

from kernels.triton.grouped_step import INPUTS, add_tile
from kernels.triton.rounded import split_sums

EXPERT_INPUTS = 64
"""Inputs of a step of a product with plain numbers."""


@triton.jit
def _assignments(assignments, ROW_TILE: tl.constexpr):
    """(the assignments of a program's tile, which exist)."""
    assignment = tl.load(assignments + tl.program_id(1) * ROW_TILE + tl.arange(0, ROW_TILE))
    return assignment, assignment >= 0


@triton.jit
def _store(output, total, bias, expert, assignment, has_row, column, out_features):
    if bias is not None:
        of_columns = tl.load(bias + expert * out_features + column, mask=column < out_features, other=0.0)
        total += of_columns.to(tl.float32)[:, None]
    line = assignment.to(tl.int64) * out_features
    there = (column < out_features)[:, None] & has_row[None, :]
    tl.store(output + line[None, :] + column[:, None], total.to(output.dtype.element_ty), mask=there)


@triton.jit
def expert_linear_kernel(
    x,
    weight,
    bias,
    output,
    experts,
    assignments,
    in_features,
    out_features,
    PER_LINE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
):
    """Line a // PER_LINE of x for each assignment a, times the weight [experts, N, K] of its expert, plus its bias
    [experts, N], if that is not None, into line a of output [assignments, N].

    Grid: (tiles of N, tiles of assignments). Oracle: `kernels.reference_experts.mixture`.
    """
    expert = tl.load(experts + tl.program_id(1)).to(tl.int64)
    if expert >= 0:
        assignment, has_row = _assignments(assignments, ROW_TILE)
        column = tl.program_id(0) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
        place = tl.arange(0, INPUT_TILE)
        weights = weight + (expert * out_features + column)[:, None] * in_features + place[None, :]
        inputs = x + (assignment // PER_LINE).to(tl.int64)[None, :] * in_features + place[:, None]
        has_column = column < out_features
        total = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
        for start in range(0, in_features, INPUT_TILE):
            there = start + place < in_features
            left = tl.load(weights + start, mask=has_column[:, None] & there[None, :], other=0.0)
            right = tl.load(inputs + start, mask=has_row[None, :] & there[:, None], other=0.0)
            total = tl.dot(left, right, total, input_precision="ieee")
        _store(output, total, bias, expert, assignment, has_row, column, out_features)


@triton.jit
def expert_grouped_kernel(
    x,
    codes,
    scales,
    zero_points,
    bias,
    output,
    experts,
    assignments,
    in_features,
    out_features,
    PER_LINE: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
):
    """`expert_linear_kernel` with integers in groups: codes [experts, tiles, N, 32], scales and zero points [experts,
    groups, N], each as in `kernels.reference_grouped.PackedGroups`."""
    expert = tl.load(experts + tl.program_id(1)).to(tl.int64)
    if expert >= 0:
        assignment, has_row = _assignments(assignments, ROW_TILE)
        column = tl.program_id(0) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
        tiles = tl.cdiv(in_features, INPUTS)
        first_line = expert * tiles * out_features
        total = tl.zeros((OUTPUT_TILE, ROW_TILE), tl.float32)
        for tile in range(0, tiles):
            total = add_tile(
                total,
                x,
                codes + first_line * (INPUTS // 4),
                scales + first_line * (INPUTS // GROUP),
                zero_points if zero_points is None else zero_points + first_line * (INPUTS // GROUP),
                tile,
                assignment // PER_LINE,
                has_row,
                column,
                out_features,
                in_features,
                GROUP,
                BITS,
            )
        _store(output, total, bias, expert, assignment, has_row, column, out_features)


@triton.jit
def expert_rounded_kernel(
    x,
    x_scales,
    codes,
    scales,
    bias,
    output,
    experts,
    assignments,
    in_features,
    out_features,
    PER_LINE: tl.constexpr,
    GROUPED: tl.constexpr,
    ROW_TILE: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
):
    """`expert_linear_kernel` in 8 bits: rounded x, codes [experts, N, K] and scales [experts, 1 or K / 128, N], as in
    `kernels.reference_rounded.RoundedWeight`."""
    expert = tl.load(experts + tl.program_id(1)).to(tl.int64)
    if expert >= 0:
        assignment, has_row = _assignments(assignments, ROW_TILE)
        column = tl.program_id(0) * OUTPUT_TILE + tl.arange(0, OUTPUT_TILE)
        tiles = in_features // INPUTS
        total = split_sums(
            x,
            codes + expert * out_features * in_features,
            x_scales,
            scales + expert * out_features * (tiles if GROUPED else 1),
            0,
            tiles,
            assignment // PER_LINE,
            has_row,
            column,
            column < out_features,
            in_features,
            out_features,
            GROUPED,
        )
        _store(output, total, bias, expert, assignment, has_row, column, out_features)


@triton.jit
def weighted_sum_kernel(
    outputs, chosen, weights, output, WIDTH: tl.constexpr, PER_TOKEN: tl.constexpr, TILE: tl.constexpr
):
    """Sum of each token's assignments, outputs [T PER_TOKEN, WIDTH], by weights float32 [T, PER_TOKEN], into output
    [T, WIDTH]. Those without an expert are not read. Grid: (T, tiles of WIDTH). Oracle:
    `kernels.reference_experts.weighted_sum`."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    exists = column < WIDTH
    total = tl.zeros((TILE,), tl.float32)
    for rank in tl.static_range(PER_TOKEN):
        assignment = token * PER_TOKEN + rank
        used = tl.load(chosen + assignment) >= 0
        numbers = tl.load(outputs + assignment * WIDTH + column, mask=exists & used, other=0.0).to(tl.float32)
        weight = tl.load(weights + assignment)
        total += tl.where(used, numbers * weight, 0.0)
    tl.store(output + token * WIDTH + column, total.to(output.dtype.element_ty), mask=exists)
