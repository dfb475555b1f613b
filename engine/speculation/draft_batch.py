"""A batch of requests that are drafted for together, one token each per forward pass.

Inputs that are the same at every position are gathered once. A position then costs a few array operations, for any
number of requests.
"""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from engine.execution.changes import NO_CHANGES, BatchChanges, LogitChanges, changes_anything
from engine.execution.sampler import Draw, sampling_columns
from engine.execution.slots import SlotTable, slot_of
from engine.speculation.draft_memory import DraftRow
from kernels.arrays import Ints
from kernels.host import HostColumns, StepRows
from kernels.noise import mixed_seeds, noise_keys


class DraftBatch:
    """G rows whose tokens are all computed. Their slots are up to date and do not change."""

    def __init__(self, rows: Sequence[DraftRow], slots: SlotTable) -> None:
        self._rows, self._slots = list(rows), slots
        self._drafts: list[tuple[int, ...]] = [()] * len(rows)
        self._positions: Ints = np.array([len(row.request.tokens) for row in rows])
        """The position of the token that each row samples next."""
        ends: Ints = self._positions + np.array([row.depth - 1 for row in rows])
        self._tables = slots.tables_of(np.array([slot_of(row.request) for row in rows]), ends)
        self._columns = sampling_columns([Draw(row.request) for row in rows], slots)
        params = [row.request.params for row in rows]
        self._noisy = any(sampling.temperature for sampling in params)
        self._mixed = mixed_seeds([row.request.seed for row in rows])
        self._changed = any(changes_anything(row.request) for row in rows)

    def columns(self) -> HostColumns:
        """The sampling columns of the next token: those with which the target will sample it."""
        if not self._noisy:
            return self._columns
        return replace(self._columns, keys=noise_keys(self._mixed, self._positions.tolist()))

    def changes(self) -> LogitChanges:
        """The logit changes of the next token: penalties, biases and forbidden stop tokens."""
        if not self._changed:
            return NO_CHANGES
        draws = [Draw(row.request, drafts) for row, drafts in zip(self._rows, self._drafts, strict=True)]
        return BatchChanges(draws, self._slots).current()

    def step_rows(self) -> StepRows:
        """The inputs of the forward pass that computes the last token of each row."""
        return StepRows(self._tables, np.ones_like(self._positions), self._positions)

    def append(self, drawn: Ints) -> None:
        """Append the sampled tokens, int64 [G]."""
        self._positions = self._positions + 1
        if self._changed:
            self._drafts = [(*drafts, token) for drafts, token in zip(self._drafts, drawn.tolist(), strict=True)]

    def keep(self, places: Sequence[int]) -> None:
        """Keep only the rows in these places."""
        at = list(places)
        kept = {column.name: getattr(self._columns, column.name)[at] for column in fields(self._columns)}
        self._columns = HostColumns(**kept)
        self._rows = [self._rows[place] for place in at]
        self._drafts = [self._drafts[place] for place in at]
        self._positions, self._tables, self._mixed = self._positions[at], self._tables[at], self._mixed[at]
