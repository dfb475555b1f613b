"""Kernels that prepare a step on the device: apply an upload, derive a step's tensors, store sampled tokens.

Oracles are the functions of the same names in `kernels.reference_step`; encoded rows are `kernels.step.Row`. Kernels do
not specialise on what varies from step to step, so that nothing is compiled while serving.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.layout import BLOCK_TOKENS
from kernels.step import COUNTING_WORDS, ROW_WORDS, Sequences, StepTensors

SCATTER_TILE = 512
TOKEN_TILE = 128
ROW_TILE = 32
COUNT_TILE = 256


@triton.jit(do_not_specialize=["runs", "length"])
def scatter_runs_kernel(words, upload, runs, length, TILE: tl.constexpr):
    """Apply an upload of `runs` runs and `length` words in all; oracle `scatter_runs`.

    words int32 [N], upload int32 [2 x runs + length]. Grid: (tiles of the words); a word finds its run by bisection.
    """
    word = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = word < length
    low = tl.zeros([TILE], dtype=tl.int32)
    high = tl.zeros([TILE], dtype=tl.int32) + runs
    # The last run that starts at or before the word is in [low, high).
    width = runs
    while width > 1:
        middle = (low + high) // 2
        starts_before = tl.load(upload + middle, mask=live & (middle < runs), other=2147483647) <= word
        low = tl.where(starts_before, middle, low)
        high = tl.where(starts_before, high, middle)
        width = (width + 1) // 2
    start = tl.load(upload + low, mask=live, other=0)
    target = tl.load(upload + runs + low, mask=live, other=0)
    value = tl.load(upload + 2 * runs + word, mask=live, other=0)
    tl.store(words + target + (word - start), value, mask=live)


@triton.jit
def derive_kernel(
    rows,
    tokens,
    block_tables,
    drafts,
    token_ids,
    positions,
    slot_mapping,
    token_rows,
    query_starts,
    context_lens,
    row_slots,
    ends,
    draw_positions,
    tokens_stride,
    blocks_stride,
    drafts_stride,
    ROW: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Derive a step's tensors from its encoded rows; oracle `derive`. Grid: (rows, tiles of the longest row)."""
    index, tile = tl.program_id(0), tl.program_id(1)
    line = rows + index * ROW
    slot, start, count = tl.load(line), tl.load(line + 1), tl.load(line + 2)
    drafted, first = tl.load(line + 3), tl.load(line + 5)
    padding = slot < 0
    slot_index = tl.maximum(slot, 0)
    context = tl.where(padding, 0, start + count)
    if tile == 0:
        # Rows lie one after another: each writes its start, and its end where the next one starts.
        tl.store(query_starts + index + 1, first + count)
        if index == 0:
            tl.store(query_starts, first)
        tl.store(context_lens + index, context)
        tl.store(row_slots + index, slot_index)
        tl.store(ends + index, (first + count - 1).to(tl.int64))
        tl.store(draw_positions + index, context.to(tl.int64))
    offset = tile * TILE + tl.arange(0, TILE)
    live = offset < count
    real = live & (slot >= 0)
    position = start + offset
    draft = offset - (count - drafted)
    sequence = slot_index.to(tl.int64)
    known = tl.load(tokens + sequence * tokens_stride + position, mask=real & (draft < 0), other=0)
    drawn_ahead = tl.load(drafts + sequence * drafts_stride + draft, mask=real & (draft >= 0), other=0)
    block = tl.load(block_tables + sequence * blocks_stride + position // BLOCK, mask=real, other=0)
    place = block.to(tl.int64) * BLOCK + position % BLOCK
    tl.store(token_ids + first + offset, (known + drawn_ahead).to(tl.int64), mask=live)
    tl.store(positions + first + offset, tl.where(padding, 0, position).to(tl.int64), mask=live)
    tl.store(slot_mapping + first + offset, tl.where(padding, -1, place), mask=live)
    tl.store(token_rows + first + offset, tl.zeros([TILE], dtype=tl.int32) + index, mask=live)


@triton.jit
def accepted_prefix(proposed, drawn, drafted):
    """The number of drafts before the first one that differs from the token drawn in its place."""
    accepted, same = 0, 1
    for place in range(0, drafted):
        same = same * (tl.load(proposed + place) == tl.load(drawn + place)).to(tl.int32)
        accepted += same
    return accepted


@triton.jit
def settled_tokens_kernel(rows, drafts, last, drawn, settled, drafts_stride, ROW: tl.constexpr):
    """Count a row's tokens without rejected drafts into settled int32 [R]; oracle `settled_tokens`. Grid: (rows)."""
    index = tl.program_id(0)
    line = rows + index * ROW
    slot, count, drafted = tl.load(line), tl.load(line + 2), tl.load(line + 3)
    proposed = drafts + tl.maximum(slot, 0).to(tl.int64) * drafts_stride
    first = drawn + tl.load(last + index) - drafted
    tl.store(settled + index, count - drafted + accepted_prefix(proposed, first, drafted))


@triton.jit
def accept_drafts_kernel(
    rows, drafts, last, drawn, tokens, rejected, length, tokens_stride, drafts_stride, ROW: tl.constexpr
):
    """Store accepted drafts and the token drawn after them in their sequences; oracle `accept_drafts`. Grid: (rows)."""
    index = tl.program_id(0)
    line = rows + index * ROW
    slot, start, count, drafted = tl.load(line), tl.load(line + 1), tl.load(line + 2), tl.load(line + 3)
    if (slot >= 0) & (drafted > 0):
        sequence = slot.to(tl.int64)
        first = drawn + tl.load(last + index) - drafted
        accepted = accepted_prefix(drafts + sequence * drafts_stride, first, drafted)
        tl.store(rejected + slot, drafted - accepted)
        position = start + count - drafted
        for place in range(0, accepted + 1):
            target = tokens + sequence * tokens_stride + position + place
            tl.store(target, tl.load(first + place).to(tl.int32), mask=position + place < length)


@triton.jit(do_not_specialize=["count"])
def follow_accepted_kernel(rows, rejected, count, ROW: tl.constexpr, TILE: tl.constexpr):
    """Move rows that follow drafts back by the rejected ones; oracle `follow_accepted`. Grid: (tiles of `count`
    rows)."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    live = index < count
    line = rows + index * ROW
    drafts = tl.load(line + 3, mask=live, other=0)
    follows = live & (drafts < 0)
    slot = tl.load(line, mask=follows, other=0)
    start = tl.load(line + 1, mask=follows, other=0)
    tl.store(line + 1, start - tl.minimum(tl.load(rejected + slot, mask=follows, other=0), -drafts), mask=follows)
    tl.store(line + 3, tl.zeros([TILE], dtype=tl.int32), mask=follows)


@triton.jit
def count_tokens_kernel(
    counts, tokens, countings, counts_stride, tokens_stride, WORDS: tl.constexpr, TILE: tl.constexpr
):
    """Count tokens of sequences; oracle `count_tokens`. Grid: (lines of `kernels.step.Counting`)."""
    line = countings + tl.program_id(0) * WORDS
    slot, first, end, prompt = tl.load(line), tl.load(line + 1), tl.load(line + 2), tl.load(line + 3)
    sequence, counted = tokens + slot.to(tl.int64) * tokens_stride, counts + slot.to(tl.int64) * counts_stride
    for tile in range(first, end, TILE):
        position = tile + tl.arange(0, TILE)
        live = position < end
        token = tl.load(sequence + position, mask=live, other=0)
        tl.atomic_or(counted + token, 1, mask=live & (position < prompt))
        tl.atomic_add(counted + token, 2, mask=live & (position >= prompt))


def scatter_runs(words: Tensor, upload: Tensor, runs: int) -> None:
    """See the oracle, `kernels.reference_step.scatter_runs`."""
    length = upload.shape[0] - 2 * runs
    grid = (triton.cdiv(length, SCATTER_TILE),)
    scatter_runs_kernel[grid](words, upload, runs, length, TILE=SCATTER_TILE)


def derive(rows: Tensor, sequences: Sequences, out: StepTensors, most_queries: int) -> None:
    """See the oracle, `kernels.reference_step.derive`. No row has more than `most_queries` tokens."""
    grid = (rows.shape[0], triton.cdiv(most_queries, TOKEN_TILE))
    derive_kernel[grid](
        rows,
        sequences.tokens,
        sequences.block_tables,
        sequences.drafts,
        out.token_ids,
        out.positions,
        out.slot_mapping,
        out.token_rows,
        out.query_starts,
        out.context_lens,
        out.row_slots,
        out.ends,
        out.draw_positions,
        sequences.tokens.stride(0),
        sequences.block_tables.stride(0),
        sequences.drafts.stride(0),
        ROW=ROW_WORDS,
        BLOCK=BLOCK_TOKENS,
        TILE=TOKEN_TILE,
    )


def settled_tokens(rows: Tensor, drafts: Tensor, last: Tensor, drawn: Tensor) -> Tensor:
    """See the oracle, `kernels.reference_step.settled_tokens`."""
    settled = torch.empty(rows.shape[0], dtype=torch.int32, device=rows.device)
    settled_tokens_kernel[(rows.shape[0],)](rows, drafts, last, drawn, settled, drafts.stride(0), ROW=ROW_WORDS)
    return settled


def accept_drafts(rows: Tensor, sequences: Sequences, last: Tensor, drawn: Tensor, rejected: Tensor) -> None:
    """See the oracle, `kernels.reference_step.accept_drafts`."""
    tokens, drafts = sequences.tokens, sequences.drafts
    accept_drafts_kernel[(rows.shape[0],)](
        rows,
        drafts,
        last,
        drawn,
        tokens,
        rejected,
        tokens.shape[1],
        tokens.stride(0),
        drafts.stride(0),
        ROW=ROW_WORDS,
    )


def follow_accepted(rows: Tensor, rejected: Tensor) -> None:
    """See the oracle, `kernels.reference_step.follow_accepted`."""
    count = rows.shape[0]
    follow_accepted_kernel[(triton.cdiv(count, ROW_TILE),)](rows, rejected, count, ROW=ROW_WORDS, TILE=ROW_TILE)


def count_tokens(counts: Tensor, tokens: Tensor, countings: Tensor) -> None:
    """See the oracle, `kernels.reference_step.count_tokens`."""
    count_tokens_kernel[(countings.shape[0],)](
        counts, tokens, countings, counts.stride(0), tokens.stride(0), WORDS=COUNTING_WORDS, TILE=COUNT_TILE
    )
