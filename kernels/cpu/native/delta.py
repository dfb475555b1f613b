"""Gated delta nets on the native library. Definition: `kernels.reference_delta`."""

import ctypes
from dataclasses import dataclass

import numpy as np

from kernels.arrays import BFLOAT16, FLOAT32, Array, Floats, Ints, address
from kernels.cpu.native import abi
from kernels.cpu.native.library import load
from kernels.cpu.native.linear import NativeLinear
from kernels.delta import StateRows
from kernels.weights import DeltaWeights

_INT64 = np.dtype(np.int64)


@dataclass(frozen=True, slots=True)
class _Drafted:
    """The inputs of a layer's rows with drafts, which are kept until it is known how many are accepted."""

    mixed: Floats
    gates: Floats


class NativeDelta:
    """The gated delta net of one layer. `place`: the layer's number among those with states."""

    def __init__(self, weights: DeltaWeights[Floats, NativeLinear], place: int, eps: float) -> None:
        library = load()
        assert library is not None, "there is no native library"
        self._library = library
        self.shape, self._gates, self._place = weights.shape, weights.gates, place
        vectors = weights.vectors
        self._vectors = [
            np.ascontiguousarray(numbers, FLOAT32)
            for numbers in (vectors.convolution, vectors.decay_rate, vectors.step_bias, vectors.norm)
        ]
        shape = weights.shape
        self._net = abi.Delta(
            shape.key_heads,
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
            shape.taps,
            shape.tiled,
            *map(address, self._vectors),
            eps,
        )
        assert library.tp_takes_delta(ctypes.addressof(self._net)), f"a gated delta net of {shape}"
        self._drafted: _Drafted | None = None

    def __call__(self, x: Array, mixed: Floats, query_lens: Ints, starts: Ints, states: StateRows) -> Array:
        """bf16 [T, Hv Dv] from normed inputs x bf16 [T, H] and mixed float32 [T, C + Hv Dv].

        query_lens, starts: int64 [R], each row's tokens and their first position. Advances the states of the rows
        without drafts, and keeps the inputs of the others for `settle`.
        """
        gates = self._gates.wide(x)
        firsts = query_lens.cumsum() - query_lens
        after = self._addresses(states, states.slots)
        before = np.where(starts > 0, after, 0)
        drafted = states.drafted
        scratch = np.empty((len(drafted), self.shape.words), FLOAT32)
        after[drafted] = address(scratch) + scratch.strides[0] * np.arange(len(drafted))
        self._drafted = None
        if len(drafted):
            kept = np.concatenate([np.arange(firsts[row], firsts[row] + query_lens[row]) for row in drafted])
            self._drafted = _Drafted(mixed[kept], gates[kept])
        saves = states.saves[~np.isin(states.saves[:, 0], drafted)]
        out = np.empty((len(x), self.shape.values), BFLOAT16)
        self._run(states, firsts, query_lens, before, after, saves, mixed, gates, out)
        return out

    def settle(self, query_lens: Ints, starts: Ints, states: StateRows, accepted: Ints) -> None:
        """Advance the states of the rows with drafts of the last call by the tokens before the drafts and the accepted
        ones: `accepted`, int64, one for each such row."""
        drafted, kept = states.drafted, self._drafted
        assert kept is not None, "no row has drafts"
        lens = query_lens[drafted]
        tokens = lens - states.drafts[drafted] + accepted
        after = self._addresses(states, states.slots[drafted])
        before = np.where(starts[drafted] > 0, after, 0)
        places = np.full(len(query_lens), -1)
        places[drafted] = np.arange(len(drafted))
        saves = states.saves.copy()
        saves[:, 0] = places[saves[:, 0]]
        saves = saves[saves[:, 0] >= 0]
        self._run(states, lens.cumsum() - lens, tokens, before, after, saves, kept.mixed, kept.gates, None)
        self._drafted = None

    def _addresses(self, states: StateRows, slots: Ints) -> Ints:
        """Addresses of the layer's states in these slots, int64."""
        memory = states.memory
        assert memory.dtype == FLOAT32, f"states are {memory.dtype}"
        addresses: Ints = address(memory) + slots * memory.strides[0] + self._place * memory.strides[1]
        return addresses

    def _run(
        self,
        states: StateRows,
        firsts: Ints,
        tokens: Ints,
        before: Ints,
        after: Ints,
        saves: Ints,
        mixed: Floats,
        gates: Floats,
        out: Array | None,
    ) -> None:
        save_rows, save_tokens = np.ascontiguousarray(saves[:, 0]), np.ascontiguousarray(saves[:, 1])
        save_to = self._addresses(states, saves[:, 2])
        arrays = (firsts, tokens, before, after, save_rows, save_tokens, save_to)
        assert all(array.dtype == _INT64 for array in arrays), "int64 everywhere"
        firsts, tokens, before, after, save_rows, save_tokens, save_to = map(np.ascontiguousarray, arrays)
        rows = abi.DeltaRows(
            len(firsts),
            address(firsts),
            address(tokens),
            address(before),
            address(after),
            len(saves),
            address(save_rows),
            address(save_tokens),
            address(save_to),
        )
        self._library.tp_gated_delta(
            ctypes.addressof(self._net),
            ctypes.addressof(rows),
            address(mixed),
            mixed.strides[0] // 4,
            address(gates),
            gates.strides[0] // 4,
            None if out is None else address(out),
            0 if out is None else out.strides[0] // 2,
        )


def gate(y: Array, by: Floats) -> None:
    """Multiply y bf16 [T, F] by the sigmoid of `by` float32 [T, F], in place."""
    library = load()
    assert library is not None, "there is no native library"
    library.tp_sigmoid_mul(address(by), by.strides[0] // 4, *y.shape, address(y), y.strides[0] // 2)
