"""Embeddings: a prompt's normed hidden states, pooled to one vector of L2 norm 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from engine.execution.slots import slot_of
from engine.request import Pooling, Request
from engine.scheduling.plan import ScheduledRow
from kernels.arrays import Array

A = TypeVar("A")

MIN_NORM = 1e-12
"""Lower bound of the norm that a vector is divided by, so that a zero vector stays zero."""


class Sums(Protocol[A]):
    """Vector arithmetic in the memory of the model."""

    def total(self, hidden: A, rows: slice, before: A | None) -> A:
        """float64 [H]: the sum of `rows` of the hidden states [T, H], added to `before`."""
        ...

    def normalise(self, total: A) -> A:
        """float32 [H]: the vector scaled to L2 norm 1."""
        ...


class HostSums:
    """`Sums` of numpy arrays."""

    def total(self, hidden: Array, rows: slice, before: Array | None) -> Array:
        total: Array = hidden[rows].sum(axis=0, dtype=np.float64)
        return total if before is None else before + total

    def normalise(self, total: Array) -> Array:
        length = np.sqrt(np.square(total).sum())
        vector: Array = (total / max(length, MIN_NORM)).astype(np.float32)
        return vector


@dataclass(frozen=True, slots=True)
class _Sum(Generic[A]):
    """The sum of the first `positions` hidden states of a request: float64 [H]."""

    request: Request
    positions: int
    total: A


class Pooler(Generic[A]):
    """Pools prompts whose rows are computed in pieces of any size.

    A running sum is kept by slot until the prompt is complete; the next request in a slot replaces it. A preempted
    request starts at its first position again.

    Sums are float64: summing in another order changes the result by less than float32 resolves, so the mean does not
    depend on how the prompt was cut into rows.
    """

    def __init__(self, sums: Sums[A]) -> None:
        self._arithmetic = sums
        self._sums: dict[int, _Sum[A]] = {}

    def pool(self, rows: Sequence[ScheduledRow], ends: Sequence[int], hidden: A) -> Mapping[int, A]:
        """Take in a step's hidden states [T, H]. `ends`: index of each row's last state; for a mean, all states of the
        row are adjacent before it. Returns the embeddings, float32 [H], by index of the rows that complete a prompt.

        If the device runs out of memory here, the step may be run again: the sums are unchanged.
        """
        embeddings, sums = {}, {}
        for index, (row, end) in enumerate(zip(rows, ends, strict=True)):
            pooling = row.request.params.pooling
            if pooling is None:
                continue
            done = row.start + row.tokens == row.request.prompt_tokens
            if pooling is Pooling.MEAN:
                sums[slot_of(row.request)] = added = self._added(row, end, hidden)
                pooled = added.total  # normalising replaces the division by the count
            else:
                pooled = self._arithmetic.total(hidden, slice(end, end + 1), None)
            if done:
                embeddings[index] = self._arithmetic.normalise(pooled)
        self._sums.update(sums)
        return embeddings

    def _added(self, row: ScheduledRow, end: int, hidden: A) -> _Sum[A]:
        before = None if row.start == 0 else self._before(row)
        total = self._arithmetic.total(hidden, slice(end + 1 - row.tokens, end + 1), before)
        return _Sum(row.request, row.start + row.tokens, total)

    def _before(self, row: ScheduledRow) -> A:
        kept = self._sums[slot_of(row.request)]
        assert (kept.request, kept.positions) == (row.request, row.start), f"{row.request.id} misses hidden states"
        return kept.total


def embedding_bytes(embedding: Array) -> bytes:
    """An embedding on the host as little-endian float32, as in `TokenDelta`."""
    return embedding.astype("<f4").tobytes()
