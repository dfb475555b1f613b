"""Lengths distributed as in chats: most short, a few long."""

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal integers with this mean, clipped to [`low`, `high`]. `sigma`: standard deviation of the logarithm; 0
    makes all of them the mean."""

    mean: float
    sigma: float
    low: int
    high: int

    def draw(self, rng: random.Random) -> int:
        drawn = rng.lognormvariate(0, self.sigma) * self.mean / math.exp(self.sigma**2 / 2)
        return max(self.low, min(self.high, round(drawn)))
