"""Log-probabilities of tokens: computed on the host or the device, read on the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from engine.request import Alternative, TokenLogprob
from engine.scheduling.plan import ScheduledRow
from kernels.arrays import Array, Floats, Ints
from kernels.host import HostOps

LOGPROB_ROWS = 64
"""Prompt positions whose logits are held in memory at a time: [64, V] float32."""


class Listed(Protocol):
    """A numpy array or a tensor."""

    def tolist(self) -> Any: ...


A = TypeVar("A", bound=Listed)


@dataclass(frozen=True, slots=True)
class Scores(Generic[A]):
    """One token for each row with its log-probability, and the most likely alternatives.

    tokens: int64 [R]; logprobs: float32 [R]. top_tokens: int64 [R, k], most likely first; top_logprobs: float32 [R, k].
    """

    tokens: A
    logprobs: A
    top_tokens: A
    top_logprobs: A

    def entries(self, counts: Sequence[int]) -> list[TokenLogprob]:
        """For each row its token and its `counts[i]` most likely ones. The scores must be on the host."""
        rows = zip(
            self.tokens.tolist(),
            self.logprobs.tolist(),
            self.top_tokens.tolist(),
            self.top_logprobs.tolist(),
            counts,
            strict=True,
        )
        return [
            TokenLogprob(token, logprob, tuple(map(Alternative, tokens[:count], logprobs[:count])))
            for token, logprob, tokens, logprobs, count in rows
        ]


def measure(ops: HostOps, logits: Floats, tokens: Ints, top_count: int) -> Scores[Array]:
    """Scores of tokens int64 [R] under logits float32 [R, V], with the `top_count` most likely tokens of each row. Ties
    go to the lowest id."""
    normalisers, logprobs, _ = ops.token_logprobs(logits, tokens)
    top = _most_likely(logits, top_count)
    return Scores(tokens, logprobs, top, np.take_along_axis(logits, top, axis=1) - normalisers[:, None])


def _most_likely(logits: Floats, top_count: int) -> Ints:
    """Token ids of the `top_count` largest logits, int64 [R, top_count]."""
    top: Ints = np.empty((len(logits), top_count), dtype=np.int64)
    if top_count:
        place = logits.shape[1] - top_count
        least = np.partition(logits, place, axis=1)[:, place]
        for row, bound, tokens in zip(logits, least, top, strict=True):
            candidates = np.flatnonzero(~(row < bound))  # all of them if there are more NaNs than that
            tokens[:] = candidates[np.argsort(-row[candidates], kind="stable")[:top_count]]
    return top


def predicted_prompt_tokens(row: ScheduledRow) -> list[int]:
    """The prompt tokens that the row's positions predict."""
    last = min(row.start + row.tokens + 1, row.request.prompt_tokens)
    return row.request.tokens[row.start + 1 : last]
