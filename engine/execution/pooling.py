"""Embeddings: the hidden states of a prompt, normed for the head, pooled to one vector of length 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from engine.execution.slots import slot_of
from engine.request import Pooling, Request
from engine.scheduling.plan import ScheduledRow
from kernels.arrays import Array

A = TypeVar("A")

LEAST_LENGTH = 1e-12
"""A vector is divided by so much at least: one of zeros stays as it is."""


class Sums(Protocol[A]):
    """Arithmetic on vectors, where the model's are."""

    def total(self, hidden: A, rows: slice, before: A | None) -> A:
        """float64 [H]: those rows of hidden states [T, H], added up, and what came before them."""
        ...

    def of_length_1(self, total: A) -> A:
        """float32 [H]."""
        ...


class HostSums:
    """On the host."""

    def total(self, hidden: Array, rows: slice, before: Array | None) -> Array:
        total: Array = hidden[rows].sum(axis=0, dtype=np.float64)
        return total if before is None else before + total

    def of_length_1(self, total: Array) -> Array:
        length = np.sqrt(np.square(total).sum())
        vector: Array = (total / max(length, LEAST_LENGTH)).astype(np.float32)
        return vector


@dataclass(frozen=True, slots=True)
class _Sum(Generic[A]):
    """Of the first `positions` hidden states of a request: float64 [H]."""

    request: Request
    positions: int
    total: A


class Pooler(Generic[A]):
    """Pools prompts that are computed in rows, as many and as long as the scheduler likes, where the model is.

    A mean is kept by slot until its prompt is done; who begins in a slot takes the place of whoever was there, so there
    are never more than slots. A preempted request comes back at its first position and begins again.

    Sums are float64: what is added up there in another order differs by less than float32 can show, so that where the
    rows are cut is no more to the mean than it is to the hidden states.
    """

    def __init__(self, sums: Sums[A]) -> None:
        self._arithmetic = sums
        self._sums: dict[int, _Sum[A]] = {}

    def pool(self, rows: Sequence[ScheduledRow], ends: Sequence[int], hidden: A) -> Mapping[int, A]:
        """Take in a step's hidden states [T, H]; the last of row i is at `ends[i]`, those before it right before it as
        far as they are to be added up. Of each row, by its index, that computes the last position of a prompt that is
        to be embedded: the embedding, float32 [H].

        Where the device has no room for that, the step may be run again, as nothing has changed.
        """
        embeddings, sums = {}, {}
        for index, (row, end) in enumerate(zip(rows, ends, strict=True)):
            pooling = row.request.params.pooling
            if pooling is None:
                continue
            done = row.start + row.tokens == row.request.prompt_tokens
            if pooling is Pooling.MEAN:
                sums[slot_of(row.request)] = added = self._added(row, end, hidden)
                pooled = added.total  # the length of 1 takes the place of the division
            else:
                pooled = self._arithmetic.total(hidden, slice(end, end + 1), None)
            if done:
                embeddings[index] = self._arithmetic.of_length_1(pooled)
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
    """An embedding that is on the host, as deltas have it: little-endian."""
    return embedding.astype("<f4").tobytes()
