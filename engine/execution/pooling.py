"""Embeddings: the hidden states of a prompt, normed for the head, pooled to one vector of length 1."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.slots import slot_of
from engine.request import Pooling, Request
from engine.scheduling.plan import ScheduledRow


@dataclass(frozen=True, slots=True)
class _Sum:
    """Of the first `positions` hidden states of a request: float64 [H]."""

    request: Request
    positions: int
    total: Tensor


class Pooler:
    """Pools prompts that are computed in rows, as many and as long as the scheduler likes, where the model is.

    A mean is kept by slot until its prompt is done; who begins in a slot takes the place of whoever was there, so there
    are never more than slots. A preempted request comes back at its first position and begins again.

    Sums are float64: what is added up there in another order differs by less than float32 can show, so that where the
    rows are cut is no more to the mean than it is to the hidden states.
    """

    def __init__(self) -> None:
        self._sums: dict[int, _Sum] = {}

    def pool(self, rows: Sequence[ScheduledRow], ends: Sequence[int], hidden: Tensor) -> Mapping[int, Tensor]:
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
                sums[slot_of(row.request)] = added = self._added(row, hidden[end + 1 - row.tokens : end + 1])
                pooled = added.total  # the length of 1 takes the place of the division
            else:
                pooled = hidden[end].double()
            if done:
                embeddings[index] = torch.nn.functional.normalize(pooled, dim=0).float()
        self._sums.update(sums)
        return embeddings

    def _added(self, row: ScheduledRow, states: Tensor) -> _Sum:
        end, added = row.start + row.tokens, states.sum(dim=0, dtype=torch.float64)
        if row.start == 0:
            return _Sum(row.request, end, added)
        kept = self._sums[slot_of(row.request)]
        assert (kept.request, kept.positions) == (row.request, row.start), f"{row.request.id} misses hidden states"
        return _Sum(row.request, end, kept.total + added)


def embedding_bytes(embedding: Tensor) -> bytes:
    """An embedding that is on the host, as deltas have it: little-endian."""
    return embedding.numpy().astype("<f4").tobytes()
