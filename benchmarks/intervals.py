"""How sure a measured figure is."""

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_Z95 = 1.96
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __format__(self, spec: str) -> str:
        return f"{self.value:{spec}} ({self.low:{spec}} to {self.high:{spec}})"


def quantile(values: Sequence[float], share: float) -> Estimate:
    """A quantile and its interval by order statistics, which assumes nothing of the distribution.

    With too few values for an end of the interval, that end is the smallest or the largest of them.
    """
    ordered, n = sorted(values), len(values)
    reach = _Z95 * math.sqrt(n * share * (1 - share))
    ranks = (n * share, n * share - reach, n * share + reach)
    return Estimate(*(ordered[min(max(math.ceil(rank) - 1, 0), n - 1)] for rank in ranks))


def proportion(hits: int, n: int) -> Estimate:
    """A share of n and Wilson's interval."""
    share, z2 = hits / n, _Z95**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    reach = _Z95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return Estimate(share, middle - reach, middle + reach)


def bootstrap_median(values: Sequence[float]) -> Estimate:
    """The median and its percentile interval under resampling."""
    return _bootstrap(statistics.median(values), lambda rng: statistics.median(rng.choices(values, k=len(values))))


def bootstrap_quantile_ratio(above: Sequence[float], below: Sequence[float], share: float) -> Estimate:
    """A quantile of one sample over the same of another; the two are resampled independently."""

    def ratio(these: Sequence[float], those: Sequence[float]) -> float:
        return quantile(these, share).value / quantile(those, share).value

    return _bootstrap(
        ratio(above, below),
        lambda rng: ratio(rng.choices(above, k=len(above)), rng.choices(below, k=len(below))),
    )


def _bootstrap(value: float, resample: Callable[[random.Random], float]) -> Estimate:
    rng = random.Random(0)
    drawn = sorted(resample(rng) for _ in range(RESAMPLES))
    return Estimate(value, drawn[int(0.025 * RESAMPLES)], drawn[int(0.975 * RESAMPLES)])
