"""Requests whose drafts grow side by side, a token each at a time: what their forward passes and draws need of them.

What is the same at every position is gathered once. A position costs a few operations on arrays, however many grow.
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


class Growth:
    """Rows of which all tokens are computed; G of them are left. Their slots are up to date, and stay as they are."""

    def __init__(self, rows: Sequence[DraftRow], slots: SlotTable) -> None:
        self._rows, self._slots = list(rows), slots
        self._drafts: list[tuple[int, ...]] = [()] * len(rows)
        self._positions: Ints = np.array([len(row.request.tokens) for row in rows])
        """Of the token that each draws next."""
        ends: Ints = self._positions + np.array([row.depth - 1 for row in rows])
        self._tables = slots.tables_of(np.array([slot_of(row.request) for row in rows]), ends)
        self._columns = sampling_columns([Draw(row.request) for row in rows], slots)
        params = [row.request.params for row in rows]
        self._noisy = any(each.temperature for each in params)
        self._mixed = mixed_seeds([row.request.seed for row in rows])
        self._changed = any(changes_anything(row.request) for row in rows)

    def columns(self) -> HostColumns:
        """How each draws its next token: as the target will draw it."""
        if not self._noisy:
            return self._columns
        return replace(self._columns, keys=noise_keys(self._mixed, self._positions.tolist()))

    def changes(self) -> LogitChanges:
        """What penalties, biases and forbidden stops change of what each draws next."""
        if not self._changed:
            return NO_CHANGES
        draws = [Draw(row.request, drafts) for row, drafts in zip(self._rows, self._drafts, strict=True)]
        return BatchChanges(draws, self._slots).current()

    def step_rows(self) -> StepRows:
        """Of the pass that computes the latest token of each."""
        return StepRows(self._tables, np.ones_like(self._positions), self._positions)

    def grow(self, drawn: Ints) -> None:
        """These tokens, int64 [G], were drawn."""
        self._positions = self._positions + 1
        if self._changed:
            self._drafts = [(*drafts, token) for drafts, token in zip(self._drafts, drawn.tolist(), strict=True)]

    def keep(self, places: Sequence[int]) -> None:
        """Only those in these places go on."""
        at = list(places)
        kept = {each.name: getattr(self._columns, each.name)[at] for each in fields(self._columns)}
        self._columns = HostColumns(**kept)
        self._rows = [self._rows[place] for place in at]
        self._drafts = [self._drafts[place] for place in at]
        self._positions, self._tables, self._mixed = self._positions[at], self._tables[at], self._mixed[at]
