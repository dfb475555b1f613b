"""The attention plan of a step on the device, and the partition of rows into splits of KV."""

from dataclasses import dataclass
from itertools import accumulate, takewhile

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops import AttentionMetadata
from kernels.triton.merging import arrival_counters

SPLIT_TOKENS = 256
"""Tokens of KV in one split. A multiple of every key tile; a constant, as it determines how results are rounded."""

COUNTED_ROWS = 256
"""Rows whose splits are counted at a time."""
CLEARED_TILE = 2048
"""Counters that a program clears."""


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """The inputs of a step's attention, on the device except for what determines the launches.

    Letters as in `kernels.ops`; S lines of the block tables. Rows of few queries (decode, or a token and its drafts)
    come before all others. A row of context 0 is padding: nothing is read for it and its output is 0.

    positions: int64 [T], position of each token in its sequence.
    slot_mapping: int64 [T], where its KV is stored: block id x 16 + offset.
    block_tables: int32 [S, B]; entries past a row's context are never read.
    row_slots: int32 [R], each row's line of the block tables.
    query_starts: int32 [R + 1], start of each row's tokens, and the end of the last.
    context_lens: int32 [R], tokens of each row up to and including this step's.
    decode_rows: leading rows whose attention is split over their context.
    decode_queries: maximum tokens of one of those.
    extend_tokens: at least the tokens of all others together.
    split_starts: int32 [decode_rows + 1], splits of all decode rows before each one, see `number_splits`.
    split_capacity: at least split_starts[-1]. Each layer's attention allocates that many partial results.
    counters: of `kernels.triton.merging`, for those rows and that capacity; 0 before and after each layer.
    """

    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    row_slots: Tensor
    query_starts: Tensor
    context_lens: Tensor
    decode_rows: int
    decode_queries: int
    extend_tokens: int
    split_starts: Tensor
    split_capacity: int
    counters: Tensor

    @property
    def extend_rows(self) -> int:
        return self.context_lens.numel() - self.decode_rows


@triton.jit(do_not_specialize=["rows", "count"], do_not_specialize_on_alignment=["context_lens", "split_starts"])
def count_splits(
    context_lens,
    split_starts,
    counters,
    rows,
    count,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Number the splits of a step: split_starts int32 [rows + 1] from context_lens int32 [rows]; and clear counters
    int32 [count].

    Row r's splits are split_starts[r] to split_starts[r + 1] - 1, one for every SPLIT tokens begun, and one for a
    context of 0, whose result is 0. Grid: (1 + tiles of the counters); program 0 numbers the splits, ROWS rows at a
    time. Oracle: `splits_of`, added up.
    """
    if tl.program_id(0) > 0:
        place = (tl.program_id(0) - 1) * TILE + tl.arange(0, TILE)
        tl.store(counters + place, tl.zeros([TILE], tl.int32), mask=place < count)
    else:
        before = 0
        tl.store(split_starts, 0)
        for first in range(0, rows, ROWS):
            row = first + tl.arange(0, ROWS)
            context = tl.load(context_lens + row, mask=row < rows, other=0)
            splits = tl.where(row < rows, tl.cdiv(tl.maximum(context, 1), SPLIT), 0)
            tl.store(split_starts + 1 + row, before + tl.cumsum(splits, axis=0), mask=row < rows)
            before += tl.sum(splits, axis=0)


def number_splits(context_lens: Tensor, split_starts: Tensor, counters: Tensor) -> None:
    """Fill split_starts int32 [R + 1] from context_lens int32 [R], and clear the counters, without waiting for the
    device."""
    rows, count = split_starts.numel() - 1, counters.numel()
    grid = (1 + triton.cdiv(count, CLEARED_TILE),)
    count_splits[grid](context_lens, split_starts, counters, rows, count, SPLIT_TOKENS, COUNTED_ROWS, CLEARED_TILE)


def splits_of(context_len: int) -> int:
    """Number of splits of a row; an upper bound for any row with a shorter context."""
    return max(1, -(-context_len // SPLIT_TOKENS))


def plan_from_metadata(metadata: AttentionMetadata, device: torch.device, decode_queries: int = 1) -> TritonPlan:
    """The plan of a step known on the host. Leading rows of at most `decode_queries` tokens are decode rows.

    A decode row's result does not depend on the rest of the step; for this to hold for rows of few tokens, they must
    come first, and `decode_queries` must be the same in every step.
    """
    lens, contexts = metadata.query_lens.tolist(), metadata.context_lens.tolist()
    decode_rows = len(list(takewhile(lambda tokens: tokens <= decode_queries, lens)))

    def on_device(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32).to(device, non_blocking=True)

    context_lens = on_device(contexts)
    split_starts = torch.empty(decode_rows + 1, dtype=torch.int32, device=device)
    split_capacity = sum(map(splits_of, contexts[:decode_rows]))
    counters = arrival_counters(decode_rows, split_capacity, device)
    number_splits(context_lens, split_starts, counters)
    return TritonPlan(
        positions=metadata.positions.to(device),
        slot_mapping=metadata.slot_mapping.to(device),
        block_tables=metadata.block_tables.to(device, torch.int32),
        row_slots=torch.arange(len(lens), dtype=torch.int32, device=device),
        query_starts=on_device(list(accumulate(lens, initial=0))),
        context_lens=context_lens,
        decode_rows=decode_rows,
        decode_queries=max(lens[:decode_rows], default=0),
        extend_tokens=sum(lens[decode_rows:]),
        split_starts=split_starts,
        split_capacity=split_capacity,
        counters=counters,
    )
