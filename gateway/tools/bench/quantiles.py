"""Quantiles, reported only with enough samples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

ENOUGH_BEYOND = 10
"""Minimum number of samples beyond a quantile. The number beyond the true quantile is binomial, with a standard
deviation of about its square root: 10 samples give a relative error of a third; with 1, the p99 is just the maximum."""


def samples_needed(share: float) -> int:
    return math.ceil(round(ENOUGH_BEYOND / min(share, 1 - share), 6))


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest of the ascending values that at least `share` of them do not exceed; None with too few values."""
    n = len(ordered)
    if n < samples_needed(share):
        return None
    return ordered[max(math.ceil(round(n * share, 6)) - 1, 0)]


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of `n` values in milliseconds; None with too few values."""

    n: int
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None


def quantiles_ms(values_s: Sequence[float]) -> Quantiles:
    ordered = sorted(value * 1e3 for value in values_s)
    mean, most = (fmean(ordered), ordered[-1]) if ordered else (None, None)
    p50, p90, p99 = (quantile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Quantiles(len(ordered), mean, p50, p90, p99, most)
