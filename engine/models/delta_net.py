"""Gated delta nets in torch: the states of a step's rows, one row after the other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.arrays import Ints
from kernels.delta import StateRows
from kernels.exchange import tensor_of
from kernels.ops import DeltaWeights
from kernels.reference_delta import DeltaRow, advance_row
from kernels.step import RowSave


class DeltaNet:
    """The gated delta net of one layer. `place`: the layer's number among those with states."""

    def __init__(self, weights: DeltaWeights, place: int, eps: float) -> None:
        self._weights, self._place, self._eps = weights, place, eps
        self._drafted: list[tuple[Tensor, Tensor]] = []

    def __call__(self, x: Tensor, mixed: Tensor, query_lens: Sequence[int], starts: Ints, states: StateRows) -> Tensor:
        """[T, Hv Dv] from normed inputs x [T, H] and mixed [T, C + Hv Dv], for rows of `query_lens` tokens that begin
        at `starts`. Advances the states of the rows without drafts, and keeps the inputs of the others for `settle`."""
        gates = self._weights.gates(x)
        self._drafted = []
        out, first = [], 0
        for row, count in enumerate(query_lens):
            inputs = mixed[first : first + count], gates[first : first + count]
            drafts = int(states.drafts[row])
            if drafts:
                self._drafted.append(inputs)
            out.append(self._compute(inputs, row, int(starts[row]), states, keep=not drafts))
            first += count
        return torch.cat(out) if out else mixed.new_empty(0, self._weights.shape.values)

    def settle(self, query_lens: Sequence[int], starts: Ints, states: StateRows, accepted: Ints) -> None:
        """Advance the states of the rows with drafts of the last call by the tokens before the drafts and the accepted
        ones: `accepted`, int64, one for each such row."""
        for place, row in enumerate(states.drafted.tolist()):
            mixed, gates = self._drafted[place]
            count = int(query_lens[row]) - int(states.drafts[row]) + int(accepted[place])
            self._compute((mixed[:count], gates[:count]), row, int(starts[row]), states, keep=True)
        self._drafted = []

    def _compute(self, inputs: tuple[Tensor, Tensor], row: int, start: int, states: StateRows, *, keep: bool) -> Tensor:
        """[tokens, Hv Dv] of a row's first tokens. `keep`: write the state, and those to save on the way."""
        mixed, gates = inputs
        saves = [RowSave(int(tokens), int(slot)) for at, tokens, slot in states.saves.tolist() if at == row]
        memory = tensor_of(states.memory)[:, self._place]
        of_row = DeltaRow(int(states.slots[row]), start, saves, keep)
        return advance_row(mixed, gates, memory, of_row, self._weights.shape, self._weights.vectors, self._eps)
