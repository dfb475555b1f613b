"""Lengths as chats have them: most short, a few long."""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Whole numbers of about this mean, log-normal with deviation `sigma` of the logarithm, cut at `low` and `high`.
    A `sigma` of 0 makes all of them the mean."""

    mean: float
    sigma: float
    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        drawn = rng.lognormvariate(0, self.sigma) * self.mean / math.exp(self.sigma**2 / 2)
        return max(self.low, min(self.high, round(drawn)))
