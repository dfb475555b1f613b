"""Attention of rows with many queries: prefill chunks over their context and themselves.

The work is bound by arithmetic, so it is partitioned by queries: tiles of packed rows large enough for the tensor
cores' widest instruction, each over all its visible keys in one program (FlashAttention-2, Dao, arXiv 2307.08691).
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
from kernels.triton.int8_kv import scales_of_head
from kernels.triton.query_tiles import row_and_tile_of


@triton.jit
def _steps(
    softmax,
    query,
    query_at,
    kv_head_keys,
    kv_head_scales,
    block_table,
    start,
    end,
    first_key,
    stop,
    block_stride,
    scale,
    CAP: tl.constexpr,
    WINDOW: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr,
    EDGE: tl.constexpr,
):
    """`attention_step` for each tile from `start` (a multiple of TILE) to before `end`."""
    for first in range(start, end, TILE):
        softmax = attention_step(
            softmax,
            query,
            query_at,
            kv_head_keys,
            kv_head_scales,
            block_table,
            first,
            first_key,
            stop,
            block_stride,
            scale,
            CAP,
            WINDOW,
            KV_HEADS,
            HEAD_DIM,
            TILE,
            EDGE,
        )
    return softmax


@triton.jit(do_not_specialize=["first_row", "rows", "table_stride"], do_not_specialize_on_alignment=STEP_TENSORS)
def extend(
    query,
    kv_layer,
    sinks,
    output,
    block_tables,
    row_slots,
    query_starts,
    context_lens,
    first_row,
    rows,
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
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Attend with the queries of `rows` rows from first_row on; output [T, Hq, D] like query, 0 where a context is 0.

    kv_layer [N, 16, 2, Hkv, D], dense within a block. scale: of scores, as in `attention_step`. sinks: float32 [Hq], or
    None.
    Grid: (Hkv, `query_tiles` of QUERY_TILE packed rows). The last rows and their last tiles start first: rows come in
    the order of their contexts, and a row's last tile sees most keys.
    Oracle: `kernels.reference.attend`.
    """
    kv_head = tl.program_id(0)
    number = tl.num_programs(1) - 1 - tl.program_id(1)
    row, tile = row_and_tile_of(number, query_starts, first_row, rows, GROUP, QUERY_TILE)
    first_packed = tile * QUERY_TILE
    first_token = tl.load(query_starts + row)
    tokens = tl.load(query_starts + row + 1) - first_token
    if first_packed < tokens * GROUP:
        context = tl.load(context_lens + row)
        packed = first_packed + tl.arange(0, QUERY_TILE)
        q, offsets, exists = load_query(query, first_token, tokens, packed, kv_head, KV_HEADS, GROUP, HEAD_DIM, DIM)
        query_at = context - tokens + packed // GROUP
        block_table = block_tables + tl.load(row_slots + row).to(tl.int64) * table_stride
        kv_head_keys = kv_layer + kv_head * HEAD_DIM
        kv_head_scales = scales_of_head(kv_layer, kv_head, KV_HEADS, HEAD_DIM)

        # The tile's first and last token see the keys up to their own. Between the tiles that some see in part, at
        # both ends, are those that all see whole. Heads of more than 256 dimensions leave no registers for a loop over
        # these.
        WHOLE_TILES: tl.constexpr = DIM <= 256
        first_token_stop = tl.minimum(context - tokens + first_packed // GROUP + 1, context)
        stop = tl.minimum(context - tokens + (first_packed + QUERY_TILE - 1) // GROUP + 1, context)
        first_key = first_visible(first_token_stop, 1, WINDOW)
        start = first_key // KEY_TILE * KEY_TILE
        softmax = start_softmax(QUERY_TILE, DIM)
        if sinks is not None:
            softmax = add_sinks(softmax, sinks, kv_head * GROUP + packed % GROUP, True)
        if WHOLE_TILES and WINDOW > 0:
            whole = tl.minimum(tl.cdiv(first_visible(stop, 1, WINDOW), KEY_TILE) * KEY_TILE, stop)
            softmax = _steps(
                softmax,
                q,
                query_at,
                kv_head_keys,
                kv_head_scales,
                block_table,
                start,
                whole,
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
            start = whole
        diagonal = start
        if WHOLE_TILES:
            diagonal = tl.maximum(first_token_stop // KEY_TILE * KEY_TILE, start)
            softmax = _steps(
                softmax,
                q,
                query_at,
                kv_head_keys,
                kv_head_scales,
                block_table,
                start,
                diagonal,
                first_key,
                stop,
                block_stride,
                scale,
                CAP,
                WINDOW,
                KV_HEADS,
                HEAD_DIM,
                KEY_TILE,
                False,
            )
        softmax = _steps(
            softmax,
            q,
            query_at,
            kv_head_keys,
            kv_head_scales,
            block_table,
            diagonal,
            stop,
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
        mean, _ = finish_softmax(softmax)
        tl.store(output + offsets, (mean * value_scale).to(output.dtype.element_ty), mask=exists)
