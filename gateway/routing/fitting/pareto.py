"""How good an order of questions is: what is kept of the large model's quality against the share that it gets.

Questions go to the large model from the highest score down. Where none does, quality is the small model's; where all
do, the large one's. The area between that curve and the small model's line, as a part of the rectangle up to the large
one's, is the average performance gap recovered (APGR, as RouteLLM defines it, arXiv 2406.18665): 0.5 for an order that
knows nothing. Shares are of cost, which is a question's tokens, or 1 where calls are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

GRID = tuple(share / 100 for share in range(1, 100))
"""Shares at which curves are compared."""


@dataclass(frozen=True, slots=True)
class Graded:
    """Which of the pair was right on a question, and what the large one cost on it."""

    small: bool
    large: bool
    cost: float

    @property
    def gain(self) -> int:
        return int(self.large) - int(self.small)


@dataclass(frozen=True, slots=True)
class Curve:
    """`shares` [n] from 0 to 1 of the cost that goes to the large model; `right` [n] of the questions that are
    answered rightly then. Linear in between: questions of equal score are taken at random."""

    shares: tuple[float, ...]
    right: tuple[float, ...]

    @property
    def small(self) -> float:
        return self.right[0]

    @property
    def large(self) -> float:
        return self.right[-1]

    @property
    def apgr(self) -> float:
        """Raises: ZeroDivisionError, where the models are equally good."""
        points = pairwise(zip(self.shares, self.right, strict=True))
        area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in points)
        return (area - self.small) / (self.large - self.small)

    def right_at(self, share: float) -> float:
        points = pairwise(zip(self.shares, self.right, strict=True))
        for (x0, y0), (x1, y1) in points:
            if x0 <= share <= x1 and x1 > x0:
                return y0 + (y1 - y0) * (share - x0) / (x1 - x0)
        return self.large

    def random_at(self, share: float) -> float:
        return self.small + (self.large - self.small) * share

    def recovered(self, right: float) -> float:
        """The part of the gap between the models."""
        return (right - self.small) / (self.large - self.small)

    @property
    def shares_below_random(self) -> tuple[float, ...]:
        """Of `GRID`: where a coin would have done better."""
        return tuple(share for share in GRID if self.right_at(share) < self.random_at(share))


def curve(scores: Sequence[float], graded: Sequence[Graded]) -> Curve:
    """Questions [n] by falling score."""
    ranked = sorted(zip(scores, graded, strict=True), key=lambda pair: -pair[0])
    total, right = sum(each.cost for each in graded), sum(each.small for each in graded)
    shares, rights, spent = [0.0], [right / len(graded)], 0.0
    for _, equals in groupby(ranked, key=lambda pair: pair[0]):
        for _, each in equals:
            spent += each.cost
            right += each.gain
        shares.append(min(spent / total, 1.0))
        rights.append(right / len(graded))
    return Curve((*shares[:-1], 1.0), tuple(rights))


def oracle(graded: Sequence[Graded]) -> Curve:
    """The best order there is: who knew which of the two is right, and at what cost."""
    return curve([each.gain / each.cost for each in graded], graded)


def at_threshold(threshold: float, scores: Sequence[float], graded: Sequence[Graded]) -> tuple[float, float]:
    """The share of the cost that goes to the large model, and the share of questions that are answered rightly, where
    those of this score and more go to it."""
    large = [score >= threshold for score in scores]
    cost = sum(each.cost for each, goes in zip(graded, large, strict=True) if goes)
    right = sum(each.large if goes else each.small for each, goes in zip(graded, large, strict=True))
    return cost / sum(each.cost for each in graded), right / len(graded)
