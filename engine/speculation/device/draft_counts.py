"""Penalties of drafts on a device: the drafts before each draft count as output."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from engine.execution.device.staging import on_device
from kernels.ops import SlotSampling
from kernels.step import Sequences

_OUTPUT = 2
"""The amount that an occurrence in the output adds to a count: see `kernels.reference_step.count_tokens`."""


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Sampling columns of the rows of a plan, with counts of their own, and the slots' sequences.

    Takes the memory of int32 [rows, V], so it is used only for plans with penalties. `lines`: by slot, its line in the
    columns.
    """

    columns: SlotSampling
    sequences: Sequences
    lines: dict[int, int]

    @classmethod
    def of_slots(cls, slots: Sequence[int], columns: SlotSampling, sequences: Sequences) -> Self:
        """Copies of the slots' columns."""
        places = on_device(slots, torch.int64, columns.counts.device)
        own = {column.name: getattr(columns, column.name)[places] for column in fields(columns)}
        return cls(SlotSampling(**own), sequences, {slot: line for line, slot in enumerate(slots)})

    def lines_of(self, slots: Sequence[int], rows: int) -> Tensor:
        """The lines of the slots of a step with `rows` rows, of which the last may be padding, int32 [rows]."""
        lines = [self.lines[slot] for slot in slots] + [0] * (rows - len(slots))
        return on_device(lines, torch.int32, self.columns.counts.device)

    def add(self, lines: Tensor, tokens: Tensor) -> None:
        """Count drawn tokens int64 [R], one of each line int32 [R]."""
        counts = self.columns.counts
        counts.index_put_((lines.long(), tokens), torch.full_like(lines, _OUTPUT), accumulate=True)
