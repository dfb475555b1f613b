"""Log-probabilities of tokens: measured where the logits are, read where the text is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from engine.request import Alternative, TokenLogprob
from engine.scheduling.plan import ScheduledRow
from kernels.ops import Ops

LOGPROB_ROWS = 64
"""Prompt positions whose logits are held at a time: [64, V] float32."""


@dataclass(frozen=True, slots=True)
class Scores:
    """One token a row with its log-probability, and the most likely ones in its place.

    tokens: int64 [R]; logprobs: float32 [R]. top_tokens: int64 [R, k], most likely first; top_logprobs: float32 [R, k].
    """

    tokens: Tensor
    logprobs: Tensor
    top_tokens: Tensor
    top_logprobs: Tensor

    def on_host(self) -> Self:
        """A copy on the host, which may be under way still when this returns."""
        fields = (self.tokens, self.logprobs, self.top_tokens, self.top_logprobs)
        return type(self)(*map(to_host, fields))

    def entries(self, counts: Sequence[int]) -> list[TokenLogprob]:
        """For each row its token and the `counts[i]` most likely ones. The scores are on the host."""
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


def to_host(tensor: Tensor) -> Tensor:
    """A copy of its own on the host, which may be under way still when this returns."""
    return tensor.to("cpu", non_blocking=True, copy=True)


def measure(ops: Ops, logits: Tensor, tokens: Tensor, most: int) -> Scores:
    """Scores of tokens int64 [R] under logits float32 [R, V], with the `most` most likely ones of each row."""
    normalisers, logprobs, _ = ops.token_logprobs(logits, tokens)
    top = logits.topk(most, dim=-1)
    return Scores(tokens, logprobs, top.indices, top.values - normalisers[:, None])


def predicted_prompt_tokens(row: ScheduledRow) -> list[int]:
    """The tokens of the prompt that the row's positions predict."""
    last = min(row.start + row.tokens + 1, row.request.prompt_tokens)
    return row.request.tokens[row.start + 1 : last]
