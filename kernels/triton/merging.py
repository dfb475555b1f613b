"""Merges the partial results of a row's splits in the kernel that wrote them (split KV, as in Flash-Decoding, with the
last arrival of Stream-K's fix-up, Osama et al., arXiv 2301.03598).

The partial results of MERGED successive splits, at fixed positions in the row's context, form a group. The program that
stores the last one of a group merges the group, and the one that completes the last group of a row merges the groups.
Both merge in ascending order, so the result does not depend on which program was last. No program waits for another.

A counter for each group and one for each row, by KV head and tile of packed rows, counts the arrivals. The last arrival
sets it to 0 again, so that counters which are 0 before a launch are 0 after it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.attention_step import LOWEST, finish_softmax, first_visible, start_softmax

MERGED_SPLITS = 16
MERGED = tl.constexpr(MERGED_SPLITS)

COUNTED_TILES = 128
"""Counters of a group, and of a row: the most KV heads times tiles of packed rows."""
COUNTED = tl.constexpr(COUNTED_TILES)


def arrival_counters(rows: int, split_capacity: int, device: torch.device) -> Tensor:
    """Memory for the counters int32 [lines, COUNTED_TILES] of `rows` rows with up to `split_capacity` splits in all;
    see `merge_if_last`. Not cleared."""
    lines = split_capacity // MERGED_SPLITS + 2 * rows
    return torch.empty((lines, COUNTED_TILES), dtype=torch.int32, device=device)


def check_tiles(count: int) -> None:
    """Raises ValueError if there are more KV heads times tiles of packed rows than counters."""
    if count > COUNTED_TILES:
        raise ValueError(f"{count} KV heads times tiles of queries; {COUNTED_TILES} are counted")


@triton.jit
def _arrive(counter, expected):
    """Whether the program is the last of `expected` ones to arrive at a counter. To the last, what the others stored
    before their arrival is visible."""
    tl.debug_barrier()
    last = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") + 1 == expected
    if last:
        tl.store(counter, 0)
    return last


@triton.jit
def _merged(
    partials,
    partial_sums,
    lines,
    split_lines,
    there,
    first,
    end,
    first_split,
    step,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The mean [M, DIM] over splits step first, step (first + 1) ... before step end, and log2 of the sum of weights
    [M]. The first of them is `first_split` if that is later. lines [M]: of split 0 in the partial results, those of the
    next one `split_lines` further."""
    dim = tl.arange(0, DIM)
    exists = there[:, None] & (dim < HEAD_DIM)[None, :]
    highest, total, mixed = start_softmax(lines.shape[0], DIM)
    for place in tl.range(first, end, num_stages=STAGES):
        line = lines + tl.maximum(place * step, first_split) * split_lines
        sums = tl.load(partial_sums + line, mask=there, other=LOWEST)
        means = tl.load(partials + line[:, None] * HEAD_DIM + dim[None, :], mask=exists, other=0.0)
        raised = tl.maximum(highest, sums)
        kept = tl.exp2(highest - raised)
        weights = tl.exp2(sums - raised)
        total = total * kept + weights
        mixed = mixed * kept[:, None] + means * weights[:, None]
        highest = raised
    return finish_softmax((highest, total, mixed))


@triton.jit
def _merge(
    output,
    partials,
    partial_sums,
    output_start,
    start,
    split_lines,
    kv_head,
    first_packed,
    end_packed,
    first,
    end,
    first_split,
    step,
    last,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Merge the packed rows from first_packed to end_packed - 1, ROWS at a time, into the output if this is the `last`
    merge, else into the first of the splits."""
    dim = tl.arange(0, DIM)
    for tile in range(first_packed, end_packed, ROWS):
        packed = tile + tl.arange(0, ROWS)
        there = packed < end_packed
        exists = there[:, None] & (dim < HEAD_DIM)[None, :]
        lines = packed // GROUP * HEADS + kv_head * GROUP + packed % GROUP
        mean, sums = _merged(
            partials,
            partial_sums,
            start + lines,
            split_lines,
            there,
            first,
            end,
            first_split,
            step,
            HEAD_DIM,
            DIM,
            STAGES,
        )
        if last:
            at = (output_start + lines)[:, None] * HEAD_DIM + dim[None, :]
            tl.store(output + at, mean.to(output.dtype.element_ty), mask=exists)
        else:
            line = start + lines + tl.maximum(first * step, first_split) * split_lines
            tl.store(partials + line[:, None] * HEAD_DIM + dim[None, :], mean, mask=exists)
            tl.store(partial_sums + line, sums, mask=there)


@triton.jit
def merge_if_last(
    output,
    partials,
    partial_sums,
    counters,
    query_starts,
    context_lens,
    split_starts,
    row,
    row_start,
    split,
    kv_head,
    tile,
    first_packed,
    most_queries,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Arrive with a partial result that is stored; the last arrival of a row stores the result in output.

    output [T, HEADS, HEAD_DIM]; partials float32 [splits, most_queries, HEADS, HEAD_DIM]; partial_sums float32 [splits,
    most_queries, HEADS]; counters int32 as of `arrival_counters`. The partial result is of split `row_start` + `split`,
    for QUERY_TILE packed rows of a KV head from first_packed on, the tile number `tile` of the split. The row has
    several splits. ROWS and STAGES: of the loops that merge; they change no result.
    """
    # Read again, so that none of it is in registers while keys are read.
    first_token = tl.load(query_starts + row)
    tokens = tl.load(query_starts + row + 1) - first_token
    context = tl.load(context_lens + row)
    first_split = first_visible(context, tokens, WINDOW) // SPLIT
    end_split = tl.cdiv(context, SPLIT)
    end_packed = tl.minimum(tokens * GROUP, first_packed + QUERY_TILE)
    split_lines = most_queries.to(tl.int64) * HEADS
    start, output_start = row_start * split_lines, first_token.to(tl.int64) * HEADS
    counter = counters + (tl.load(split_starts + row) // MERGED + 2 * row).to(tl.int64) * COUNTED + tile
    group = split // MERGED
    first = tl.maximum(group * MERGED, first_split)
    end = tl.minimum(group * MERGED + MERGED, end_split)
    first_group, end_group = first_split // MERGED, tl.cdiv(end_split, MERGED)
    last = end_group - first_group == 1
    step = 1
    merges = _arrive(counter + (1 + group) * COUNTED, end - first)
    while merges:
        _merge(
            output,
            partials,
            partial_sums,
            output_start,
            start,
            split_lines,
            kv_head,
            first_packed,
            end_packed,
            first,
            end,
            first_split,
            step,
            last,
            GROUP,
            HEADS,
            HEAD_DIM,
            DIM,
            ROWS,
            STAGES,
        )
        merges = step == 0 if last else _arrive(counter, end_group - first_group)
        first, end, step, last = first_group, end_group, MERGED, step == 1


@triton.jit
def store_split(
    mean,
    sums,
    output,
    partials,
    partial_sums,
    counters,
    query_starts,
    context_lens,
    split_starts,
    row,
    split,
    kv_head,
    tile,
    first_packed,
    most_queries,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Store the mean [QUERY_TILE, DIM] and log2 of the sum of weights [QUERY_TILE] of a split: in the output if the row
    has no other, else as `merge_if_last` takes it."""
    # Read again, so that none of it is in registers while keys are read.
    first_token = tl.load(query_starts + row)
    tokens = tl.load(query_starts + row + 1) - first_token
    context = tl.load(context_lens + row)
    row_start = tl.load(split_starts + row)
    packed = first_packed + tl.arange(0, QUERY_TILE)
    dim = tl.arange(0, DIM)
    exists = (packed < tokens * GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    line = (packed // GROUP * HEADS + kv_head * GROUP + packed % GROUP).to(tl.int64)
    if tl.cdiv(context, SPLIT) - first_visible(context, tokens, WINDOW) // SPLIT <= 1:
        line += first_token.to(tl.int64) * HEADS
        tl.store(output + line[:, None] * HEAD_DIM + dim[None, :], mean.to(output.dtype.element_ty), mask=exists)
    else:
        line += split.to(tl.int64) * most_queries * HEADS
        tl.store(partials + line[:, None] * HEAD_DIM + dim[None, :], mean, mask=exists)
        tl.store(partial_sums + line, sums, mask=packed < tokens * GROUP)
        merge_if_last(
            output,
            partials,
            partial_sums,
            counters,
            query_starts,
            context_lens,
            split_starts,
            row,
            row_start,
            split - row_start,
            kv_head,
            tile,
            first_packed,
            most_queries,
            GROUP,
            HEADS,
            HEAD_DIM,
            DIM,
            WINDOW,
            SPLIT,
            QUERY_TILE,
            ROWS,
            STAGES,
        )
