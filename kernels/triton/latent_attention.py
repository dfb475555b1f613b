"""Attention over paged latents in the absorbed form (DeepSeek-V2, arXiv 2405.04434, section 2.1.2).

All query heads share one key a token, whose latent is the value, too: a tile of KV is read once for both. As there are
few queries for the bytes of a key, products have tokens of KV, or dimensions of the latent, as their rows, and packed
rows of queries as columns:

    packed row i  =  query token i // HEADS,  query head i % HEADS

The partition, the softmax and its masks are those of `kernels.triton.decode`, `extend` and `attention_step`.
"""

import triton
import triton.language as tl

from kernels.triton.attention_step import BLOCK, LOWEST, STEP_TENSORS
from kernels.triton.decode import first_split_of, row_of
from kernels.triton.query_tiles import row_and_tile_of


@triton.jit
def _load_query(
    query,
    first_token,
    tokens,
    packed,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    START: tl.constexpr,
    COUNT: tl.constexpr,
    TILE: tl.constexpr,
):
    """Dimensions [START, START + COUNT) of packed rows of query [T, HEADS, DIM], transposed: [TILE, M]."""
    line = first_token.to(tl.int64) * HEADS + packed
    dim = tl.arange(0, TILE)
    there = (packed < tokens * HEADS)[:, None] & (dim < COUNT)[None, :]
    return tl.trans(tl.load(query + line[:, None] * DIM + (START + dim)[None, :], mask=there, other=0.0))


@triton.jit
def _start_softmax(RANK_TILE: tl.constexpr, QUERY_TILE: tl.constexpr):
    """(maximum score, sum of weights, weighted sum of latents) of no keys."""
    highest = tl.full((QUERY_TILE,), LOWEST, tl.float32)
    return highest, tl.zeros((QUERY_TILE,), tl.float32), tl.zeros((RANK_TILE, QUERY_TILE), tl.float32)


@triton.jit
def _finish_softmax(softmax):
    """The weighted mean of the latents [RANK_TILE, M], 0 without visible keys, and log2 of the sum of weights [M]."""
    highest, total, mixed = softmax
    total = tl.where(total > 0.0, total, 1.0)
    return mixed / total[None, :], highest + tl.log2(total)


@triton.jit
def _latent_step(
    softmax,
    rotated_query,
    latent_query,
    query_at,
    kv_layer,
    block_table,
    start,
    stop,
    block_stride,
    scale,
    ROTATED: tl.constexpr,
    RANK: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Add the keys at positions [start, start + KEY_TILE) to `softmax`.

    rotated_query [., M] and latent_query [., M] are at positions query_at [M], each of which sees the keys up to its
    own. Only keys before `stop` are read. `start` is a multiple of KEY_TILE and KEY_TILE of BLOCK.
    """
    highest, total, mixed = softmax
    DIM: tl.constexpr = ROTATED + RANK
    rotated_dim = tl.arange(0, rotated_query.shape[0])
    latent_dim = tl.arange(0, latent_query.shape[0])
    columns = start // BLOCK + tl.arange(0, KEY_TILE // BLOCK)
    key_at = start + tl.arange(0, KEY_TILE)
    blocks = tl.load(block_table + columns, mask=columns * BLOCK < stop, other=0)
    slots = blocks.to(tl.int64)[:, None] * block_stride + (tl.arange(0, BLOCK) * DIM)[None, :]
    # The compiler does not follow divisibility through a reshape, and needs it for 16-byte loads.
    lines = kv_layer + tl.multiple_of(tl.reshape(slots, (KEY_TILE,)), 16)[:, None]
    readable = (key_at < stop)[:, None]
    latents = tl.load(
        lines + (ROTATED + latent_dim)[None, :], mask=readable & (latent_dim < RANK)[None, :], other=0.0
    ).to(latent_query.dtype)
    rotated = tl.load(lines + rotated_dim[None, :], mask=readable & (rotated_dim < ROTATED)[None, :], other=0.0)
    scores = tl.dot(latents, latent_query, input_precision="ieee")
    scores = tl.dot(rotated.to(latent_query.dtype), rotated_query, scores, input_precision="ieee") * scale
    visible = readable & (key_at[:, None] <= query_at[None, :])
    scores = tl.where(visible, scores, float("-inf"))
    raised = tl.maximum(highest, tl.max(scores, axis=0))
    kept = tl.exp2(highest - raised)
    weights = tl.exp2(scores - raised[None, :])
    total = total * kept + tl.sum(weights, axis=0)
    mixed = tl.dot(tl.trans(latents), weights.to(latents.dtype), mixed * kept[None, :], input_precision="ieee")
    return raised, total, mixed


@triton.jit(do_not_specialize=["rows", "most_queries", "table_stride"], do_not_specialize_on_alignment=STEP_TENSORS)
def latent_decode(
    query,
    kv_layer,
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
    HEADS: tl.constexpr,
    ROTATED: tl.constexpr,
    RANK: tl.constexpr,
    ROTATED_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr,
    JOINED: tl.constexpr,
    SPLIT: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Attend with the queries of rows 0 to rows - 1 to each split of their contexts.

    query [T, Hq, ROTATED + RANK]; output [T, Hq, RANK]; kv_layer [N, 16, 1, 1, ROTATED + RANK], dense within a block. A
    row of one split is written to output; of others each split's mean goes to partials float32 [splits, most_queries,
    Hq, RANK] and log2 of its sum of weights to partial_sums float32 [splits, most_queries, Hq]. scale: of scores, in
    base 2.

    Grid: (programs,), any number. A piece of work is (split, QUERY_TILE packed rows), those of a split one after
    another; a split of SPLIT tokens is JOINED ones of the plan. Oracle: `kernels.reference_latent.attend_latents`, with
    `merge_latents`.
    """
    query_tiles = tl.cdiv(most_queries * HEADS, QUERY_TILE)
    pieces = first_split_of(rows, split_starts, JOINED) * query_tiles
    for piece in range(tl.program_id(0), pieces, tl.num_programs(0)):
        split = piece // query_tiles
        row = row_of(split, split_starts, rows, JOINED)
        context = tl.load(context_lens + row)
        first_token = tl.load(query_starts + row)
        tokens = tl.load(query_starts + row + 1) - first_token
        first_packed = piece % query_tiles * QUERY_TILE
        split_start = (split - first_split_of(row, split_starts, JOINED)) * SPLIT
        stop = tl.minimum(split_start + SPLIT, context)
        if (split_start < context) & (first_packed < tokens * HEADS):
            packed = first_packed + tl.arange(0, QUERY_TILE)
            rotated_query = _load_query(
                query, first_token, tokens, packed, HEADS, ROTATED + RANK, 0, ROTATED, ROTATED_TILE
            )
            latent_query = _load_query(
                query, first_token, tokens, packed, HEADS, ROTATED + RANK, ROTATED, RANK, RANK_TILE
            )
            query_at = context - tokens + packed // HEADS
            block_table = block_tables + tl.load(row_slots + row).to(tl.int64) * table_stride
            softmax = _start_softmax(RANK_TILE, QUERY_TILE)
            for start in range(split_start, stop, KEY_TILE):
                softmax = _latent_step(
                    softmax,
                    rotated_query,
                    latent_query,
                    query_at,
                    kv_layer,
                    block_table,
                    start,
                    stop,
                    block_stride,
                    scale,
                    ROTATED,
                    RANK,
                    KEY_TILE,
                )
            mean, sums = _finish_softmax(softmax)
            dim = tl.arange(0, RANK_TILE)
            exists = (dim < RANK)[:, None] & (packed < tokens * HEADS)[None, :]
            if (split_start == 0) & (stop == context):
                line = first_token.to(tl.int64) * HEADS + packed
                at = line[None, :] * RANK + dim[:, None]
                tl.store(output + at, mean.to(output.dtype.element_ty), mask=exists)
            else:
                line = split.to(tl.int64) * most_queries * HEADS + packed
                tl.store(partials + line[None, :] * RANK + dim[:, None], mean, mask=exists)
                tl.store(partial_sums + line, sums, mask=packed < tokens * HEADS)


@triton.jit(do_not_specialize=["most_queries"], do_not_specialize_on_alignment=STEP_TENSORS)
def merge_latents(
    output,
    partials,
    partial_sums,
    query_starts,
    context_lens,
    split_starts,
    most_queries,
    HEADS: tl.constexpr,
    RANK: tl.constexpr,
    RANK_TILE: tl.constexpr,
    SPLIT: tl.constexpr,
    SPLITS: tl.constexpr,
    JOINED: tl.constexpr,
):
    """Combine the partial results of `latent_decode` in output [T, Hq, RANK]; a row with context 0 becomes 0.

    Grid: (rows, most_queries, Hq), one query head of one token each, SPLITS splits at a time in order. Rows that
    `latent_decode` wrote directly are unchanged. A launch of its own, unlike `kernels.triton.merging`: what one program
    of `latent_decode` would merge are all heads of a row, which are many, each as wide as a latent.
    """
    row, token, head = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_token = tl.load(query_starts + row)
    tokens = tl.load(query_starts + row + 1) - first_token
    context = tl.load(context_lens + row)
    end_split = tl.cdiv(context, SPLIT)
    if (token < tokens) & (end_split != 1):
        before = first_split_of(row, split_starts, JOINED)
        dim = tl.arange(0, RANK_TILE)
        highest = tl.full((1,), LOWEST, tl.float32)
        total = tl.zeros((1,), tl.float32)
        mixed = tl.zeros((RANK_TILE,), tl.float32)
        for first in range(0, end_split, SPLITS):
            split = first + tl.arange(0, SPLITS)
            there = split < end_split
            line = ((before + split).to(tl.int64) * most_queries + token) * HEADS + head
            sums = tl.load(partial_sums + line, mask=there, other=LOWEST)
            means = tl.load(
                partials + line[:, None] * RANK + dim[None, :],
                mask=there[:, None] & (dim < RANK)[None, :],
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
        tl.store(output + line * RANK + dim, mixed.to(output.dtype.element_ty), mask=dim < RANK)


@triton.jit(do_not_specialize=["first_row", "rows", "table_stride"], do_not_specialize_on_alignment=STEP_TENSORS)
def latent_extend(
    query,
    kv_layer,
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
    HEADS: tl.constexpr,
    ROTATED: tl.constexpr,
    RANK: tl.constexpr,
    ROTATED_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr,
    QUERY_TILE: tl.constexpr,
    KEY_TILE: tl.constexpr,
):
    """Attend with the queries of `rows` rows from first_row on; output [T, Hq, RANK], 0 in a row with context 0.

    Tensors as in `latent_decode`. Grid: (`query_tiles` of QUERY_TILE packed rows,), in the order of
    `kernels.triton.extend`. Oracle: `kernels.reference_latent.attend_latents`.
    """
    number = tl.num_programs(0) - 1 - tl.program_id(0)
    row, tile = row_and_tile_of(number, query_starts, first_row, rows, HEADS, QUERY_TILE)
    first_packed = tile * QUERY_TILE
    first_token = tl.load(query_starts + row)
    tokens = tl.load(query_starts + row + 1) - first_token
    if first_packed < tokens * HEADS:
        context = tl.load(context_lens + row)
        packed = first_packed + tl.arange(0, QUERY_TILE)
        rotated_query = _load_query(query, first_token, tokens, packed, HEADS, ROTATED + RANK, 0, ROTATED, ROTATED_TILE)
        latent_query = _load_query(query, first_token, tokens, packed, HEADS, ROTATED + RANK, ROTATED, RANK, RANK_TILE)
        query_at = context - tokens + packed // HEADS
        block_table = block_tables + tl.load(row_slots + row).to(tl.int64) * table_stride
        stop = tl.minimum(context - tokens + (first_packed + QUERY_TILE - 1) // HEADS + 1, context)
        softmax = _start_softmax(RANK_TILE, QUERY_TILE)
        for start in range(0, stop, KEY_TILE):
            softmax = _latent_step(
                softmax,
                rotated_query,
                latent_query,
                query_at,
                kv_layer,
                block_table,
                start,
                stop,
                block_stride,
                scale,
                ROTATED,
                RANK,
                KEY_TILE,
            )
        mean, _ = _finish_softmax(softmax)
        dim = tl.arange(0, RANK_TILE)
        at = (first_token.to(tl.int64) * HEADS + packed)[None, :] * RANK + dim[:, None]
        exists = (dim < RANK)[:, None] & (packed < tokens * HEADS)[None, :]
        tl.store(output + at, mean.to(output.dtype.element_ty), mask=exists)
