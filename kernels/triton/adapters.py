"""Products with low-rank adapters: y += up (down x), of each token with those of its own (Punica, arXiv 2310.18547;
S-LoRA, arXiv 2311.03285).

Tokens are sorted into tiles of one adapter each, once a step. `shrink` computes down x: its inputs are summed in splits
whose places follow from the weight's shape alone, each by a program of its own. `expand` adds the splits in their
order, rounds the sum to the compute dtype, and adds up times it to y. So a token's numbers depend on neither its tile
nor the number of tokens. The grids follow from the number of tokens: programs of tiles without tokens, and of adapters
that do not change the product, end at once.

A slot of `memory` holds the products of an adapter one after another, each down [parts, R, K] and then up [N, R]. R is
the adapter's own rank, a multiple of 8, so that each product begins at a place that is R times its `base`.
"""

import triton
import triton.language as tl

from kernels.triton.dependent_launch import wait_for_predecessor

_NONE = tl.constexpr(-1)
_ADDED_AT_ONCE = tl.constexpr(4)
"""Splits whose sums are loaded together."""


@triton.jit(do_not_specialize=["tokens"], do_not_specialize_on_alignment=["token_rows", "slot_mapping", "chosen"])
def token_adapters_kernel(
    rows, token_rows, slot_mapping, adapters, chosen, tokens, ROW: tl.constexpr, TILE: tl.constexpr
):
    """The adapter's slot of each token, chosen int32 [T]. Grid: (tiles of the tokens,). Oracle:
    `kernels.reference_adapters.token_adapters`."""
    wait_for_predecessor()
    token = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = token < tokens
    stored = live & (tl.load(slot_mapping + token, mask=live, other=-1) >= 0)
    slot = tl.load(rows + tl.load(token_rows + token, mask=live, other=0) * ROW, mask=live, other=-1)
    adapter = tl.load(adapters + slot, mask=stored & (slot >= 0), other=_NONE)
    tl.store(chosen + token, adapter, mask=live)


@triton.jit
def _product_of(memory, ranks, slot, products, number, slot_numbers, base):
    """(where a slot's product begins, its rank; 0 if the adapter does not change it)."""
    rank = tl.multiple_of(tl.load(ranks + slot * products + number), 8)
    return memory + slot.to(tl.int64) * slot_numbers + rank.to(tl.int64) * base, rank


@triton.jit(do_not_specialize=["tiles", "number"])
def shrink_kernel(
    x,
    memory,
    ranks,
    slots,
    tokens,
    partials,
    tiles,
    products,
    number,
    slot_numbers,
    base,
    in_features,
    PARTS: tl.constexpr,
    RANK_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    INPUT_TILE: tl.constexpr,
    SPLIT_INPUTS: tl.constexpr,
):
    """down x of each part and split, into partials float32 [splits, tiles, PARTS, ROW_TILE, RANK_TILE].

    x: [T, K]. memory: [slots, slot_numbers]. ranks: int32 [slots, products]; `number`: of this product. slots: int32
    [tiles], of each tile's adapter, or -1. tokens: int32 [tiles, ROW_TILE], or -1. Grid: (PARTS x splits, tiles).
    Oracle: `kernels.reference_adapters.add_low_rank`.
    """
    wait_for_predecessor()
    tile = tl.program_id(1)
    slot = tl.load(slots + tile)
    if slot >= 0:
        product, rank = _product_of(memory, ranks, slot, products, number, slot_numbers, base)
        if rank > 0:
            part, split = tl.program_id(0) % PARTS, tl.program_id(0) // PARTS
            of_row, of_rank, place = tl.arange(0, ROW_TILE), tl.arange(0, RANK_TILE), tl.arange(0, INPUT_TILE)
            token = tl.load(tokens + tile * ROW_TILE + of_row)
            has_row, has_rank = token >= 0, of_rank < rank
            down = product + ((part * rank + of_rank) * in_features)[:, None] + place[None, :]
            inputs = x + token.to(tl.int64)[None, :] * in_features + place[:, None]
            first = split * SPLIT_INPUTS
            total = tl.zeros((RANK_TILE, ROW_TILE), tl.float32)
            for start in range(first, tl.minimum(first + SPLIT_INPUTS, in_features), INPUT_TILE):
                there = start + place < in_features
                left = tl.load(down + start, mask=has_rank[:, None] & there[None, :], other=0.0)
                right = tl.load(inputs + start, mask=has_row[None, :] & there[:, None], other=0.0)
                total = tl.dot(left, right, total, input_precision="ieee")
            line = ((split * tiles + tile) * PARTS + part) * ROW_TILE + of_row
            tl.store(partials + line[None, :] * RANK_TILE + of_rank[:, None], total)


@triton.jit
def _part_of(
    tile, first_end, second_end, out_features, PARTS: tl.constexpr, ALIGNED: tl.constexpr, OUTPUT_TILE: tl.constexpr
):
    """(part, first output, outputs) of a tile. Tiles do not reach from part to part."""
    part, begin, end = 0, 0, first_end
    if PARTS > 1:
        tiles = tl.cdiv(first_end, OUTPUT_TILE)
        if tile >= tiles:
            part, begin, end = 1, first_end, second_end
            tile -= tiles
            if PARTS > 2:
                tiles = tl.cdiv(second_end - first_end, OUTPUT_TILE)
                if tile >= tiles:
                    part, begin, end = 2, second_end, out_features
                    tile -= tiles
    first = begin + tile * OUTPUT_TILE
    outputs = tl.minimum(end - first, OUTPUT_TILE)
    return part, tl.multiple_of(first, ALIGNED), tl.multiple_of(outputs, ALIGNED)


@triton.jit(do_not_specialize=["tiles", "number", "splits"])
def expand_kernel(
    y,
    memory,
    ranks,
    slots,
    tokens,
    partials,
    tiles,
    products,
    number,
    slot_numbers,
    base,
    in_features,
    out_features,
    first_end,
    second_end,
    splits,
    PARTS: tl.constexpr,
    ALIGNED: tl.constexpr,
    RANK_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    OUTPUT_TILE: tl.constexpr,
):
    """Add up times the sum of the splits to y [T, N], in float32, and round once.

    Arguments as of `shrink_kernel`, which makes the partials. first_end, second_end: of the parts but the last; N where
    there are fewer. ALIGNED: a number that divides these and N. Grid: (tiles of N, part by part; tiles of tokens).
    Oracle: `kernels.reference_adapters.add_low_rank`.
    """
    wait_for_predecessor()
    tile = tl.program_id(1)
    slot = tl.load(slots + tile)
    if slot >= 0:
        product, rank = _product_of(memory, ranks, slot, products, number, slot_numbers, base)
        if rank > 0:
            part, first, outputs = _part_of(
                tl.program_id(0), first_end, second_end, out_features, PARTS, ALIGNED, OUTPUT_TILE
            )
            of_row, of_rank = tl.arange(0, ROW_TILE), tl.arange(0, RANK_TILE)
            within = tl.arange(0, OUTPUT_TILE)
            column = first + within
            has_column, has_rank = within < outputs, of_rank < rank
            token = tl.load(tokens + tile * ROW_TILE + of_row)
            up = product + (PARTS * in_features + column)[:, None] * rank + of_rank[None, :]
            left = tl.load(up, mask=has_column[:, None] & has_rank[None, :], other=0.0)
            line = (tile * PARTS + part) * ROW_TILE + of_row
            sums = partials + line[None, :] * RANK_TILE + of_rank[:, None]
            inner = tl.zeros((RANK_TILE, ROW_TILE), tl.float32)
            for earliest in range(0, splits, _ADDED_AT_ONCE):
                for each in tl.static_range(_ADDED_AT_ONCE):
                    split = earliest + each
                    exists = (split < splits) & has_rank[:, None] & (of_row >= 0)[None, :]
                    at = sums + split * tiles * (PARTS * ROW_TILE * RANK_TILE)
                    inner += tl.load(at, mask=exists, other=0.0)
            added = tl.dot(left, inner.to(left.dtype), input_precision="ieee")
            at = y + token.to(tl.int64)[None, :] * out_features + column[:, None]
            there = has_column[:, None] & (token >= 0)[None, :]
            total = tl.load(at, mask=there, other=0.0).to(tl.float32) + added
            tl.store(at, total.to(y.dtype.element_ty), mask=there)
