"""Measured times of decode steps by their number of tokens.

It complements the linear cost model, which fits the whole range of steps but may be wrong by half for the small
differences that speculation depends on: a product of three rows can cost as much as one of four, and five a quarter
more.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from math import exp, log, log2, sqrt
from typing import NamedTuple

from engine.scheduling.cost import StepCostModel

MIN_NOISE = 0.03
"""Minimum relative noise of equal steps. The actual noise is measured."""
UNTRIED = 0.2
"""Relative standard error of the time of twice or half as many tokens as the nearest measured step."""
MAX_ERROR = 0.8
CELL_MEMORY = 128
"""Steps in the moving average of one number of tokens."""
SPEED_MEMORY = 32
"""Steps in the moving average of the device's speed, which scales all times."""
YOUNG = 8.0
"""An error is attributed to a cell with fewer steps than this rather than to the device's speed."""
FADE_STEPS = 4096
"""Time constant in steps: a cell that was not measured for as long counts with 1/e of its steps."""
PLAUSIBLE_ERROR = 0.5
MIN_SHARE = 0.25
"""Minimum of an extrapolated time, relative to the nearest measured one."""
FIRST_STEPS = 2
"""The fastest of the first steps of a number of tokens counts: first steps are slow for other reasons."""
MAX_CONTEXT_SHARE = 0.5
"""Maximum fraction of a step's time that reading context is assumed to take."""


class Estimate(NamedTuple):
    """A time in nanoseconds and its relative standard error."""

    ns: float
    error: float


@dataclass(slots=True)
class _Cell:
    """The measured time of steps with one number of tokens.

    `ns`: their time at speed 1 with a context of `context_tokens`. `steps`: the effective number of measurements.
    """

    ns: float
    context_tokens: float
    steps: float
    seen_step: int
    seen_speed: float


class StepTimes:
    """A table of measured times by tokens, interpolated between its entries. The cost model extrapolates beyond them,
    and corrects for other contexts."""

    def __init__(self, cost_model: StepCostModel) -> None:
        self._cost_model = cost_model
        self._cells: dict[int, _Cell] = {}
        self._known: list[int] = []
        """The keys of the `_cells` with at least two measurements, in order: a single one may be an outlier."""
        self._speed = 1.0
        self._noise = 0.1
        """The mean relative error of predictions."""

    def observe(self, tokens: int, context_tokens: int, elapsed_ns: int, step: int) -> None:
        """Record a decode step of `tokens` tokens, drafts included, that read the KV of `context_tokens` tokens."""
        if elapsed_ns <= 0:
            return
        key = bucket(tokens)
        cell = self._cells.get(key)
        if cell is None:
            self._cells[key] = _Cell(elapsed_ns / self._speed, context_tokens, 1.0, step, self._speed)
            return
        if key not in self._known:
            insort(self._known, key)
        error = elapsed_ns / self._at(key, tokens, context_tokens) - 1.0
        known = self._steps_of(cell, step)
        cell.steps = min(known + 1.0, CELL_MEMORY)
        cell.context_tokens += (context_tokens - cell.context_tokens) / cell.steps
        cell.seen_step = step
        if known < FIRST_STEPS:
            cell.ns *= 1.0 + min(error, 0.0)
            cell.seen_speed = self._speed
            return
        error = min(max(error, -PLAUSIBLE_ERROR), PLAUSIBLE_ERROR)
        self._noise += (max(abs(error), MIN_NOISE) - self._noise) / CELL_MEMORY
        self._speed *= 1.0 + error * known / (known + YOUNG) / SPEED_MEMORY
        cell.ns *= 1.0 + error / cell.steps
        cell.seen_speed = self._speed

    def predict(self, tokens: int, context_tokens: int, step: int) -> Estimate:
        """The predicted time of a decode step."""
        key = bucket(tokens)
        if key in self._known:
            error = self._noise / sqrt(self._steps_of(self._cells[key], step))
            return Estimate(self._at(key, tokens, context_tokens), min(error, MAX_ERROR))
        if not self._known:
            costs = self._cost_model.coefficients
            return Estimate(costs.step_ns + costs.token_ns * tokens + costs.context_token_ns * context_tokens, UNTRIED)
        place = bisect_left(self._known, key)
        if place in (0, len(self._known)):
            near = self._known[place and -1]
            return Estimate(self._at(near, tokens, context_tokens), self._untried(near, tokens, step))
        below, above = self._known[place - 1 : place + 1]
        low_ns, high_ns = self._at(below, below, context_tokens), self._at(above, above, context_tokens)
        ns = low_ns + (high_ns - low_ns) * (tokens - below) / (above - below)
        error = min(self._untried(below, tokens, step), self._untried(above, tokens, step))
        return Estimate(ns, max(error, min(1.0 - low_ns / ns, UNTRIED)))  # times may be a step function

    def _untried(self, near: int, tokens: int, step: int) -> float:
        """The error of a time that is extrapolated from the entry at `near`."""
        own = self._noise / sqrt(self._steps_of(self._cells[near], step))
        return min(own + UNTRIED * abs(log2(tokens / near)), MAX_ERROR)

    def _at(self, key: int, tokens: int, context_tokens: int) -> float:
        """The time of a step, from the entry at `key`, corrected for its tokens and context."""
        cell, costs = self._cells[key], self._cost_model.coefficients
        token_ns = min(costs.token_ns, cell.ns / key)
        context_ns = min(costs.context_token_ns, MAX_CONTEXT_SHARE * cell.ns / max(cell.context_tokens, 1.0))
        changed_ns = token_ns * (tokens - key) + context_ns * (context_tokens - cell.context_tokens)
        return self._speed * max(cell.ns + changed_ns, MIN_SHARE * cell.ns)

    def _steps_of(self, cell: _Cell, step: int) -> float:
        """The effective number of measurements of an entry. It decreases with age and with changes of the device's
        speed, as those may not have affected all steps equally."""
        steps = max(cell.steps * exp((cell.seen_step - step) / FADE_STEPS), 0.25)
        changed = log(self._speed / cell.seen_speed) / self._noise
        return 1.0 / (1.0 / steps + changed * changed)


def bucket(tokens: int) -> int:
    """Round down to the bucket: exact up to 15, then eight buckets per doubling."""
    width = 1 << max(tokens.bit_length() - 4, 0)
    return tokens - tokens % width
