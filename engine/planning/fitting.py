"""Fits the times of steps to recorded ones by non-negative least squares (Lawson and Hanson 1974)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from engine.planning.step_features import MeasuredRange, StepFeatures
from engine.planning.step_times import LinearTimes

MIN_STEPS = 50
"""Fewer steps are not fitted."""
_ROUNDS = 4
"""Of reweighting: errors relative to the predicted time have equal weight."""
_OUTLIER = 4.0
"""A step that takes this multiple of its prediction was slow by accident: it has no weight, but is a residual."""
_QUANTILES = 200


class TooFewSteps(ValueError):
    """The recorded steps cannot be fitted. The message says what is missing."""


class StepSample(NamedTuple):
    """A recorded step: its work, and the time until the next one could begin."""

    features: StepFeatures
    ns: int


@dataclass(frozen=True, slots=True)
class Fit:
    """`median_error`, `p90_error`: relative, of a step's time. `total_error`: relative, of the sum of all times.
    `noise`: quantiles of the measured over the predicted time."""

    times: LinearTimes
    steps: int
    median_error: float
    p90_error: float
    total_error: float
    noise: tuple[float, ...]


def fit_steps(samples: Sequence[StepSample]) -> Fit:
    """Fit a model of times to recorded steps.

    Raises:
        TooFewSteps: there are fewer than `MIN_STEPS`, or no decode steps among them.
    """
    samples = [sample for sample in samples if sample.ns > 0]
    if len(samples) < MIN_STEPS:
        raise TooFewSteps(f"{len(samples)} steps were recorded; a fit needs {MIN_STEPS}")
    if not any(sample.features.decode_rows for sample in samples):
        raise TooFewSteps("no step with a decode row was recorded")
    work = np.array([(1, *sample.features) for sample in samples], np.float64)
    times = np.array([sample.ns for sample in samples], np.float64)
    coefficients = np.zeros(work.shape[1])
    predicted = np.full(len(times), np.median(times))
    for _ in range(_ROUNDS):
        weights = np.where(times > _OUTLIER * predicted, 0.0, 1.0 / predicted)
        coefficients = non_negative_least_squares(work * weights[:, None], times * weights)
        predicted = np.maximum(work @ coefficients, 1e-3 * np.median(times))
    ratios = times / predicted
    errors = np.abs(predicted / times - 1.0)
    quantiles = np.quantile(ratios, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    return Fit(
        times=_times_of(coefficients, samples),
        steps=len(samples),
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        total_error=float(predicted.sum() / times.sum() - 1.0),
        noise=tuple(round(float(ratio), 4) for ratio in quantiles),
    )


def _times_of(coefficients: np.ndarray, samples: Sequence[StepSample]) -> LinearTimes:
    step, token, pair, row, context = map(float, coefficients)
    return LinearTimes(step, token, pair, row, context, MeasuredRange.of([each.features for each in samples]))


def non_negative_least_squares(matrix: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The x >= 0 with the least |matrix @ x - target|. `matrix` [N, K], `target` [N], float64; returns [K].

    The columns are scaled to length 1 first, as they differ by many orders of magnitude; a column of zeros has 0.
    """
    lengths = np.linalg.norm(matrix, axis=0)
    used = lengths > 0
    scaled = matrix / np.where(used, lengths, 1.0)
    count = matrix.shape[1]
    solution, passive = np.zeros(count), np.zeros(count, bool)
    for _ in range(3 * count):
        gradient = scaled.T @ (target - scaled @ solution)
        candidates = np.where(used & ~passive, gradient, -np.inf)
        best = int(np.argmax(candidates))
        if candidates[best] <= 1e-10 * np.linalg.norm(target):
            break
        passive[best] = True
        solution = _within_bounds(scaled, target, solution, passive)
    return solution / np.where(used, lengths, 1.0)


def _within_bounds(matrix: np.ndarray, target: np.ndarray, solution: np.ndarray, passive: np.ndarray) -> np.ndarray:
    """Least squares over the `passive` columns; those that would become negative leave the set on the way there."""
    while True:
        free = np.zeros(len(solution))
        free[passive] = np.linalg.lstsq(matrix[:, passive], target, rcond=None)[0]
        if (free[passive] > 0).all():
            return free
        falling = passive & (free <= 0)
        step = float(np.min(solution[falling] / (solution[falling] - free[falling] + 1e-300)))
        solution = solution + step * (free - solution)
        passive &= solution > 1e-14
        solution = np.where(passive, solution, 0.0)
        if not passive.any():
            return solution
