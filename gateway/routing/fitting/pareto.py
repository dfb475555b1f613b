"""Quality of a routing score: the Pareto front of answer quality against the large model's share of the cost.

Questions go to the large model by falling score. At share 0 the quality is the small model's, at share 1 the large
model's. The area between that curve and the small model's line, as a part of the rectangle up to the large model's, is
the average performance gap recovered (APGR, as RouteLLM defines it, arXiv 2406.18665): 0.5 for a random order. Shares
are of the cost: a question's tokens, or 1 where calls are counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

GRID = tuple(share / 100 for share in range(1, 100))
"""Cost shares at which curves are compared."""


@dataclass(frozen=True, slots=True)
class Graded:
    """The result of both models on one question. `cost`: cost of the large model's answer."""

    small: bool
    large: bool
    cost: float

    @property
    def gain(self) -> int:
        """1 if only the large model is right, -1 if only the small one is, otherwise 0."""
        return int(self.large) - int(self.small)


@dataclass(frozen=True, slots=True)
class Curve:
    """Quality by cost share. `shares` [n]: from 0 to 1, the large model's share of the cost. `right` [n]: the share of
    questions answered correctly. Linear between the points: questions of equal score are taken at random."""

    shares: tuple[float, ...]
    right: tuple[float, ...]

    @property
    def small(self) -> float:
        """The small model's share of correct answers."""
        return self.right[0]

    @property
    def large(self) -> float:
        """The large model's share of correct answers."""
        return self.right[-1]

    @property
    def apgr(self) -> float:
        """Average performance gap recovered. Raises ZeroDivisionError if both models are equally good."""
        points = pairwise(zip(self.shares, self.right, strict=True))
        area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in points)
        return (area - self.small) / (self.large - self.small)

    def right_at(self, share: float) -> float:
        """The share of correct answers at a cost share."""
        points = pairwise(zip(self.shares, self.right, strict=True))
        for (x0, y0), (x1, y1) in points:
            if x0 <= share <= x1 and x1 > x0:
                return y0 + (y1 - y0) * (share - x0) / (x1 - x0)
        return self.large

    def random_at(self, share: float) -> float:
        """The share of correct answers of a random order at a cost share."""
        return self.small + (self.large - self.small) * share

    def recovered(self, right: float) -> float:
        """The part of the gap between the models that `right` recovers."""
        return (right - self.small) / (self.large - self.small)

    @property
    def shares_below_random(self) -> tuple[float, ...]:
        """The shares of `GRID` at which a random order is better."""
        return tuple(share for share in GRID if self.right_at(share) < self.random_at(share))


def curve(scores: Sequence[float], graded: Sequence[Graded]) -> Curve:
    """The curve of questions [n] that are routed by falling score."""
    ranked = sorted(zip(scores, graded, strict=True), key=lambda pair: -pair[0])
    total, right = sum(result.cost for result in graded), sum(result.small for result in graded)
    shares, rights, spent = [0.0], [right / len(graded)], 0.0
    for _, equals in groupby(ranked, key=lambda pair: pair[0]):
        for _, result in equals:
            spent += result.cost
            right += result.gain
        shares.append(min(spent / total, 1.0))
        rights.append(right / len(graded))
    return Curve((*shares[:-1], 1.0), tuple(rights))


def oracle(graded: Sequence[Graded]) -> Curve:
    """The curve of the best possible order, from the true gains and costs."""
    return curve([result.gain / result.cost for result in graded], graded)


def at_threshold(threshold: float, scores: Sequence[float], graded: Sequence[Graded]) -> tuple[float, float]:
    """The large model's share of the cost, and the share of questions answered correctly, if questions with a score of
    at least `threshold` go to the large model."""
    large = [score >= threshold for score in scores]
    cost = sum(result.cost for result, goes in zip(graded, large, strict=True) if goes)
    right = sum(result.large if goes else result.small for result, goes in zip(graded, large, strict=True))
    return cost / sum(result.cost for result in graded), right / len(graded)
