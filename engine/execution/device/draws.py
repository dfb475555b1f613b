"""The positions at which a step samples: after each row, and after each draft of a row."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from engine.execution.device.staging import on_device
from engine.scheduling.plan import ScheduledRow
from kernels.ops import SlotSampling
from kernels.step import Row, StepShape, StepTensors


@dataclass(frozen=True, slots=True)
class Draws:
    """The draws of a step on the device, in the order of its rows; D = R if no row has drafts.

    ends: int64 [D], index in the step's tensors of the token that each draw follows; None where each token has one.
    row_slots: int32 [D].
    positions: int64 [D], index in its sequence of the sampled token.
    rows: int32 [D], the row of each draw. last: integers [R], the last draw of each row. None where D = R.
    """

    ends: Tensor | None
    row_slots: Tensor
    positions: Tensor
    rows: Tensor | None = None
    last: Tensor | None = None

    @classmethod
    def after_rows(cls, tensors: StepTensors, shape: StepShape) -> "Draws":
        """One draw for each row."""
        ends = None if shape.most_queries == 1 else tensors.ends
        return cls(ends, tensors.row_slots, tensors.draw_positions)

    @classmethod
    def after_drafts(cls, rows: Sequence[ScheduledRow], lines: Sequence[Row], device: torch.device) -> "Draws":
        """One draw for each row and each draft. The host knows all tokens of rows with drafts."""
        owners, ends, slots, positions, last = list[int](), list[int](), list[int](), list[int](), list[int]()
        for index, (row, line) in enumerate(zip(rows, lines, strict=True)):
            count = len(row.drafts)
            end, position = line.first + line.tokens, line.start + line.tokens
            owners += [index] * (count + 1)
            ends += range(end - 1 - count, end)
            slots += [line.slot] * (count + 1)
            positions += range(position - count, position + 1)
            last.append(len(owners) - 1)
        return cls(
            on_device(ends, torch.int64, device),
            on_device(slots, torch.int32, device),
            on_device(positions, torch.int64, device),
            on_device(owners, torch.int32, device),
            on_device(last, torch.int64, device),
        )

    @classmethod
    def after_tokens(cls, tensors: StepTensors) -> "Draws":
        """One draw for each token of the step, needed or not. The device knows all of it."""
        row_slots = tensors.row_slots[tensors.token_rows]
        return cls(None, row_slots, tensors.positions + 1, tensors.token_rows, tensors.ends)

    def hidden_of(self, hidden: Tensor) -> Tensor:
        """Of the hidden states [T, H] of a step, those that the draws follow, [D, H]."""
        return hidden if self.ends is None else hidden[self.ends]


def counting_drafts(
    columns: SlotSampling, draws: Draws, rows: Sequence[ScheduledRow], draw_starts: Sequence[int]
) -> tuple[SlotSampling, Tensor]:
    """Sampling columns for penalties with drafts: one row for each draw, whose counts include the drafts before it, and
    the index of that row, int32 [D]. `draw_starts`: index of each row's first draw.

    Takes the memory of int32 [D, V], so it is used only for steps that have both.
    """
    device, slots = draws.row_slots.device, draws.row_slots.long()
    counts = columns.counts[slots]
    lines: list[int] = []
    tokens: list[int] = []
    for row, first in zip(rows, draw_starts, strict=True):
        for taken in range(1, len(row.drafts) + 1):
            lines += [first + taken] * taken
            tokens += row.drafts[:taken]
    places = on_device(lines, torch.int64, device), on_device(tokens, torch.int64, device)
    counts.index_put_(places, torch.full_like(places[0], 2, dtype=counts.dtype), accumulate=True)
    own = {column.name: getattr(columns, column.name)[slots] for column in fields(columns) if column.name != "counts"}
    return SlotSampling(**own, counts=counts), torch.arange(len(slots), dtype=torch.int32, device=device)
