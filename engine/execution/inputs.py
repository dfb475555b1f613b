"""The tensors of one step, made from its plan."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import BLOCK_TOKENS
from engine.execution.slots import SlotTable, index_tensor
from engine.scheduling.plan import ScheduledRow, StepPlan
from kernels.ops import AttentionMetadata


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A step as the model takes it.

    rows: the plan's rows in the order that the kernels want: by token count, then by context length.
    order: where each of them stands in the plan.
    token_ids: int64 [T]. ends: index of each row's last token in the step's tensors, int64 [R].
    """

    rows: list[ScheduledRow]
    order: list[int]
    token_ids: Tensor
    ends: Tensor
    metadata: AttentionMetadata


def prepare_inputs(plan: StepPlan, slots: SlotTable) -> StepInputs:
    """Tensors for the plan's rows, whose slots are up to date."""
    order = sorted(range(len(plan.rows)), key=lambda i: _kernel_order(plan.rows[i]))
    rows = [plan.rows[i] for i in order]
    token_ids: list[int] = []
    for row in rows:
        token_ids += row.request.tokens[row.start : row.start + row.tokens]  # as many as there are: drafts come behind
        token_ids += row.drafts
    metadata, ends = place_rows(
        slots.block_tables,
        [row.request.slot for row in rows if row.request.slot is not None],
        [row.tokens for row in rows],
        [row.start + row.tokens for row in rows],
    )
    return StepInputs(rows, order, index_tensor(token_ids), ends, metadata)


def place_rows(
    block_tables: Tensor, slots: list[int], query_lens: list[int], context_lens: list[int]
) -> tuple[AttentionMetadata, Tensor]:
    """Where the tokens of rows stand: row i has the blocks of line `slots[i]` of int64 [slots, B], and its tokens are
    the last `query_lens[i]` of `context_lens[i]`. With the index of each row's last token in the step's tensors,
    int64 [R].
    """
    lengths, contexts = index_tensor(query_lens), index_tensor(context_lens)
    ends = lengths.cumsum(0) - 1
    owner = torch.repeat_interleave(lengths)
    positions = torch.arange(len(owner)) + (contexts - 1 - ends)[owner]
    tables = block_tables[index_tensor(slots), : -(-max(context_lens) // BLOCK_TOKENS)]
    slot_mapping = tables[owner, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    return AttentionMetadata(positions, slot_mapping, tables, tuple(query_lens), tuple(context_lens)), ends


def _kernel_order(row: ScheduledRow) -> tuple[int, int]:
    return row.tokens, row.start + row.tokens
