"""Attention of rows with few queries: one token, or a token and its drafts, over a long context (split KV, as in
Flash-Decoding).

The work is bound by reading KV, so it is partitioned by KV: each row's context into splits of a fixed number of tokens
at fixed positions, each split into KV heads. The pieces, of nearly equal size, are distributed over a fixed number of
programs, whatever the lengths: the launch is the same for every step and can be replayed from a CUDA graph. A row with
several splits writes a partial result for each, and `merge` combines them in order. Where a row is split, and so how
its sums are rounded, depends on its own length alone.
"""

import triton
import triton.language as tl

from kernels.triton.attention_step import (
    LOWEST,
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
):
    """Attend with the queries of rows 0 to rows - 1 to each split of their contexts.

    query, output [T, Hq, D]; kv_layer [N, 16, 2, Hkv, D], dense within a block (int8: `kernels.triton.int8_kv`). A row
    whose window lies in one split is written to output; of others each split's mean goes to partials float32 [splits,
    most_queries, Hq, D] and log2 of its sum of weights to partial_sums float32 [splits, most_queries, Hq]. scale: of
    scores, as in `attention_step`. sinks: float32 [Hq], in the sum of the first of these splits; None: there are none.

    Grid: (programs,), any number. A piece of work is (split, KV head, QUERY_TILE packed rows), the split's heads one
    after another, since their keys are neighbours in memory. Oracle: `kernels.reference.attend`, with `merge`.
    """
    wait_for_predecessor()
    query_tiles = tl.cdiv(most_queries * GROUP, QUERY_TILE)
    pieces = tl.load(split_starts + rows) * (KV_HEADS * query_tiles)
    for piece in range(tl.program_id(0), pieces, tl.num_programs(0)):
        split = piece // (KV_HEADS * query_tiles)
        kv_head = piece // query_tiles % KV_HEADS
        row = row_of(split, split_starts, rows, 1)
        context = tl.load(context_lens + row)
        first_token = tl.load(query_starts + row)
        tokens = tl.load(query_starts + row + 1) - first_token
        first_packed = piece % query_tiles * QUERY_TILE
        first_key = first_visible(context, tokens, WINDOW)
        split_start = (split - tl.load(split_starts + row)) * SPLIT
        stop = tl.minimum(split_start + SPLIT, context)
        if (stop > first_key) & (first_packed < tokens * GROUP):
            packed = first_packed + tl.arange(0, QUERY_TILE)
            q, offsets, exists = load_query(query, first_token, tokens, packed, kv_head, KV_HEADS, GROUP, HEAD_DIM, DIM)
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
            if (split_start <= first_key) & (stop == context):
                tl.store(output + offsets, mean.to(output.dtype.element_ty), mask=exists)
            else:
                line = (split.to(tl.int64) * most_queries + packed // GROUP) * (KV_HEADS * GROUP)
                line += kv_head * GROUP + packed % GROUP
                dim = tl.arange(0, DIM)
                tl.store(partials + line[:, None] * HEAD_DIM + dim[None, :], mean, mask=exists)
                tl.store(partial_sums + line, sums, mask=packed < tokens * GROUP)


@triton.jit(do_not_specialize=["most_queries"], do_not_specialize_on_alignment=STEP_TENSORS)
def merge(
    output,
    partials,
    partial_sums,
    query_starts,
    context_lens,
    split_starts,
    most_queries,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    JOINED: tl.constexpr,
):
    """Combine the partial results of `decode` in output [T, Hq, D]; a row with context 0 becomes 0.

    Grid: (rows, most_queries, Hq), one query head of one token each, SPLITS splits at a time in order. A split
    of SPLIT tokens is JOINED ones of the plan. Rows that `decode` wrote directly are unchanged.
    """
    row, token, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_token = tl.load(query_starts + row)
    tokens = tl.load(query_starts + row + 1) - first_token
    context = tl.load(context_lens + row)
    first_split = first_visible(context, tokens, WINDOW) // SPLIT
    end_split = tl.cdiv(context, SPLIT)
    if (token < tokens) & (end_split - first_split != 1):
        before = first_split_of(row, split_starts, JOINED)
        dim = tl.arange(0, DIM)
        highest = tl.full((1,), LOWEST, tl.float32)
        total = tl.zeros((1,), tl.float32)
        mixed = tl.zeros((DIM,), tl.float32)
        for first in range(first_split, end_split, SPLITS):
            split = first + tl.arange(0, SPLITS)
            there = split < end_split
            line = ((before + split).to(tl.int64) * most_queries + token) * HEADS + head
            sums = tl.load(partial_sums + line, mask=there, other=LOWEST)
            means = tl.load(
                partials + line[:, None] * HEAD_DIM + dim[None, :],
                mask=there[:, None] & (dim < HEAD_DIM)[None, :],
                other=0.0,
            )
            raised = tl.maximum(highest, tl.max(sums, axis=0))
            kept = tl.exp2(highest - raised)
            weights = tl.exp2(sums - raised)
            total = total * kept + tl.sum(weights, axis=0)
            mixed = mixed * kept + tl.sum(means * weights[:, None], axis=0)
            highest = raised
        mixed /= tl.where(total > 0.0, total, 1.0)
        line = (first_token + token).to(tl.int64) * HEADS + head
        tl.store(output + line * HEAD_DIM + dim, mixed.to(output.dtype.element_ty), mask=dim < HEAD_DIM)
