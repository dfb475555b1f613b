"""Attention of rows with few queries: one token, or a token and its drafts, over a long context (split KV, as in
Flash-Decoding).

The work is bound by reading KV, so it is partitioned by KV: each row's context into splits of a fixed number of tokens
at fixed positions, each split into KV heads. The pieces, of nearly equal size, are distributed over a fixed number of
programs, whatever the lengths: the launch is the same for every step and can be replayed from a CUDA graph. A row with
several splits writes a partial result for each, and `kernels.triton.merging` combines them in order. Where a row is
split, and so how its sums are rounded, depends on its own length alone.
"""

import triton
import triton.language as tl

from kernels.triton.attention_step import (
    STEP_TENSORS,
    add_sinks,
    attention_step,
    finish_softmax,
    first_visible,
    load_query,
    start_softmax,
)
from kernels.triton.dependent_launch import wait_for_predecessor
from kernels.triton.int8_kv import scales_of_head
from kernels.triton.merging import store_split


@triton.jit
def first_split_of(row, split_starts, JOINED: tl.constexpr):
    """Number of a row's first split where JOINED of the plan's splits are one. A row that needs fewer numbers than it
    gets leaves one unused."""
    first = tl.load(split_starts + row)
    if JOINED == 1:
        return first
    else:
        return first // JOINED + row


@triton.jit
def row_of(split, split_starts, rows, JOINED: tl.constexpr):
    """The row that a split belongs to, by bisection: the last that starts at or before it, so never an empty one."""
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        begun = first_split_of(middle, split_starts, JOINED) <= split
        low = tl.where(begun, middle, low)
        high = tl.where(begun, high, middle)
    return low


@triton.jit(do_not_specialize=["rows", "most_queries", "table_stride"], do_not_specialize_on_alignment=STEP_TENSORS)
def decode(
    query,
    kv_layer,
    sinks,
    output,
    partials,
    partial_sums,
    counters,
    block_tables,
    row_slots,
    query_starts,
    context_lens,
    split_starts,
    rows,
    most_queries,
    table_stride,
    block_stride,
    scale,
    value_scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
    MERGED_ROWS: tl.constexpr,
    MERGE_STAGES: tl.constexpr,
):
    """Attend with the queries of rows 0 to rows - 1 to each split of their contexts.

    query, output [T, Hq, D]; kv_layer [N, 16, 2, Hkv, D], dense within a block (int8: `kernels.triton.int8_kv`). A row
    whose window lies in one split is written to output, one of context 0 as 0; of others each split's mean goes to
    partials float32 [splits, most_queries, Hq, D] and log2 of its sum of weights to partial_sums float32 [splits,
    most_queries, Hq], and the last program to do so merges them, counted by `counters`: see `kernels.triton.merging`.
    scale: of scores, as in `attention_step`. sinks: float32 [Hq], in the sum of the first of these splits; None: there
    are none.

    Grid: (programs,), any number. A piece of work is (split, KV head, QUERY_TILE packed rows), the split's heads one
    after another, since their keys are neighbours in memory. Oracle: `kernels.reference.attend`.
    """
    wait_for_predecessor()
    query_tiles = tl.cdiv(most_queries * GROUP, QUERY_TILE)
    tiles = KV_HEADS * query_tiles
    pieces = tl.load(split_starts + rows) * tiles
    for piece in range(tl.program_id(0), pieces, tl.num_programs(0)):
        split = piece // tiles
        kv_head = piece % tiles // query_tiles
        row = row_of(split, split_starts, rows, 1)
        context = tl.load(context_lens + row)
        first_token = tl.load(query_starts + row)
        tokens = tl.load(query_starts + row + 1) - first_token
        first_packed = piece % query_tiles * QUERY_TILE
        first_key = first_visible(context, tokens, WINDOW)
        split_start = (split - tl.load(split_starts + row)) * SPLIT
        stop = tl.minimum(split_start + SPLIT, context)
        if ((stop > first_key) | (context == 0)) & (first_packed < tokens * GROUP):
            packed = first_packed + tl.arange(0, QUERY_TILE)
            q, _, _ = load_query(query, first_token, tokens, packed, kv_head, KV_HEADS, GROUP, HEAD_DIM, DIM)
            query_at = context - tokens + packed // GROUP
            block_table = block_tables + tl.load(row_slots + row).to(tl.int64) * table_stride
            softmax = start_softmax(QUERY_TILE, DIM)
            if sinks is not None:
                softmax = add_sinks(softmax, sinks, kv_head * GROUP + packed % GROUP, split_start <= first_key)
            for start in range(tl.maximum(split_start, first_key // KEY_TILE * KEY_TILE), stop, KEY_TILE):
                softmax = attention_step(
                    softmax,
                    q,
                    query_at,
                    kv_layer + kv_head * HEAD_DIM,
                    scales_of_head(kv_layer, kv_head, KV_HEADS, HEAD_DIM),
                    block_table,
                    start,
                    first_key,
                    stop,
                    block_stride,
                    scale,
                    CAP,
                    WINDOW,
                    KV_HEADS,
                    HEAD_DIM,
                    KEY_TILE,
                    True,
                )
            mean, sums = finish_softmax(softmax)
            mean *= value_scale
            store_split(
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
                piece % tiles,
                first_packed,
                most_queries,
                GROUP,
                KV_HEADS * GROUP,
                HEAD_DIM,
                DIM,
                WINDOW,
                SPLIT,
                QUERY_TILE,
                MERGED_ROWS,
                MERGE_STAGES,
            )
