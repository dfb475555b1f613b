"""Gated delta nets in torch: the states of a step's rows, one row after the other."""

from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.arrays import Ints
from kernels.delta import DeltaShape, StateRows
from kernels.exchange import tensor_of
from kernels.ops import DeltaWeights
from kernels.reference_delta import DeltaState, gated_delta


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
        shape, vectors = self._weights.shape, self._weights.vectors
        memory = tensor_of(states.memory)[:, self._place]
        slot = int(states.slots[row])
        words = memory[slot] if start else torch.zeros(shape.words)
        state = DeltaState.of(words, shape)
        saves = [(int(tokens), int(to)) for at, tokens, to in states.saves.tolist() if at == row] if keep else []
        saves = [(tokens, to) for tokens, to in saves if tokens <= len(mixed)]
        out, first = [], 0
        for end, to in (*saves, (len(mixed), slot)):
            if end > first:
                piece, state = gated_delta(mixed[first:end], gates[first:end], state, shape, vectors, self._eps)
                out.append(piece)
            if keep:
                _store(state, memory[to], shape)
            first = end
        return torch.cat(out)


def _store(state: DeltaState, words: Tensor, shape: DeltaShape) -> None:
    target = DeltaState.of(words, shape)
    target.kept.copy_(state.kept)
    target.memory.copy_(state.memory)
