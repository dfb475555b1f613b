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

    rows: the plan's rows in the order that the kernels want: single tokens by context length, then longer chunks.
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
    query_lens = [row.tokens for row in rows]
    context_lens = [row.start + row.tokens for row in rows]
    lengths, contexts = index_tensor(query_lens), index_tensor(context_lens)
    ends = lengths.cumsum(0) - 1
    owner = torch.repeat_interleave(lengths)
    positions = torch.arange(len(token_ids)) + (contexts - 1 - ends)[owner]
    slot_ids = [row.request.slot for row in rows]
    width = -(-max(context_lens) // BLOCK_TOKENS)
    block_tables = slots.block_tables[torch.tensor(slot_ids), :width]
    slot_mapping = block_tables[owner, positions // BLOCK_TOKENS] * BLOCK_TOKENS + positions % BLOCK_TOKENS
    metadata = AttentionMetadata(positions, slot_mapping, block_tables, tuple(query_lens), tuple(context_lens))
    return StepInputs(rows, order, index_tensor(token_ids), ends, metadata)


def _kernel_order(row: ScheduledRow) -> tuple[bool, int]:
    return row.tokens > 1, row.start + row.tokens
