"""The work of a step as the fitted model of step times sees it, and the range of work that was measured."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self


class StepFeatures(NamedTuple):
    """Sums over the rows of a step. A decode row computes one token; other rows are of prefill.

    `prefill_pairs`: (query, key) pairs of prefill rows: their tokens, each times the context that it attends to.
    `decode_context`: tokens of context that decode rows read.
    """

    prefill_tokens: int
    prefill_pairs: int
    decode_rows: int
    decode_context: int


def features_of(starts: Sequence[int], tokens: Sequence[int]) -> StepFeatures:
    """Of a step whose rows compute `tokens[i]` tokens from position `starts[i]` on."""
    rows, all_tokens = len(starts), sum(tokens)
    if all_tokens == rows:
        return StepFeatures(0, 0, rows, sum(starts) + rows)
    prefill_tokens = prefill_pairs = decode_rows = decode_context = 0
    for start, count in zip(starts, tokens, strict=True):
        if count == 1:
            decode_rows += 1
            decode_context += start + 1
        else:
            prefill_tokens += count
            prefill_pairs += count * start + count * (count + 1) // 2
    return StepFeatures(prefill_tokens, prefill_pairs, decode_rows, decode_context)


TOLERANCE = 1.1
"""Steps may exceed the largest measured ones by a tenth."""
MAX_OUTSIDE = 0.01
"""Fraction of a run's steps that may be outside the range before its figures are withheld."""


class MeasuredRange(NamedTuple):
    """The largest value of each feature among the measured steps."""

    most: StepFeatures

    @classmethod
    def of(cls, steps: Iterable[StepFeatures]) -> Self:
        return cls(StepFeatures(*map(max, zip(*steps, strict=True))))

    def outside(self, features: StepFeatures) -> str | None:
        """The name of a feature that is outside the range; None: all are within."""
        for name, value, most in zip(StepFeatures._fields, features, self.most, strict=True):
            if value > TOLERANCE * most:
                return name
        return None


class Excess(NamedTuple):
    """Steps of a run whose `feature` was outside the fitted range: their `share` of all steps, and its maximum."""

    feature: str
    share: float
    largest: int
    fitted: int

    def __str__(self) -> str:
        return f"{self.feature} up to {self.largest:,} in {self.share:.1%} of the steps, fitted up to {self.fitted:,}"
