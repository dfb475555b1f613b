"""What decode steps take by the number of their tokens, as it was measured.

Beside the linear cost model, which is right over the whole range of steps and may be wrong by half where speculation
decides: a product of three rows can cost what one of four does, and the next one a quarter more.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass
from math import exp, log, log2, sqrt
from typing import NamedTuple

from engine.scheduling.cost import StepCostModel

MIN_NOISE = 0.03
"""Equal steps differ by this part of their time at least; how much they do is learnt."""
UNTRIED = 0.2
"""Standard error, as a part of the time, of twice or half as many tokens as any step had yet."""
MOST_ERROR = 0.8
CELL_MEMORY = 128
"""So many steps of a number of tokens, the latest, make its time."""
SPEED_MEMORY = 32
"""So many steps of any kind make the device's speed, which all times share."""
YOUNG = 8.0
"""A time that rests on fewer steps than this is corrected itself before the device is said to be slower."""
FADE_STEPS = 4096
"""After so many steps without one of its kind, a time is as uncertain as with a third of its measurements."""
PLAUSIBLE_ERROR = 0.5
MIN_SHARE = 0.25
"""A time is never thought to be less than this part of one that was measured beside it."""
FIRST_STEPS = 2
"""Of the first steps of a kind the fastest counts: a first time is slow for reasons of its own."""
MOST_CONTEXT_SHARE = 0.5
"""Of a step's time, reading context takes no more than this, whatever the cost model says."""


class Estimate(NamedTuple):
    """Nanoseconds, and their standard error as a part of them."""

    ns: float
    error: float


@dataclass(slots=True)
class _Cell:
    """The time at the speed of 1 of a step with this many tokens, which read the KV of `context_tokens`."""

    ns: float
    context_tokens: float
    steps: float
    seen_step: int
    seen_speed: float


class StepTimes:
    """A table of measured times, by tokens. Between its entries they are interpolated; for what lies beyond them, and
    for what another context makes of them, the cost model is asked."""

    def __init__(self, cost_model: StepCostModel) -> None:
        self._cost_model = cost_model
        self._cells: dict[int, _Cell] = {}
        self._known: list[int] = []
        """The keys of those `_cells` that were seen twice, in order: one time alone may be an accident."""
        self._speed = 1.0
        self._noise = 0.1
        """The mean difference between a step's time and what was expected, as a part of it."""

    def observe(self, tokens: int, context_tokens: int, elapsed_ns: int, step: int) -> None:
        """A decode step had `tokens` tokens, drafts included, and read the KV of `context_tokens`."""
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
        """How long a decode step with these would take."""
        key = bucket(tokens)
        if key in self._known:
            error = self._noise / sqrt(self._steps_of(self._cells[key], step))
            return Estimate(self._at(key, tokens, context_tokens), min(error, MOST_ERROR))
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
        return Estimate(ns, max(error, min(1.0 - low_ns / ns, UNTRIED)))  # times may go up by stairs

    def _untried(self, near: int, tokens: int, step: int) -> float:
        """The error of a time that is estimated by the entry at `near`."""
        own = self._noise / sqrt(self._steps_of(self._cells[near], step))
        return min(own + UNTRIED * abs(log2(tokens / near)), MOST_ERROR)

    def _at(self, key: int, tokens: int, context_tokens: int) -> float:
        """The time of a step by the entry at `key`, changed for as many tokens and that context."""
        cell, costs = self._cells[key], self._cost_model.coefficients
        token_ns = min(costs.token_ns, cell.ns / key)
        context_ns = min(costs.context_token_ns, MOST_CONTEXT_SHARE * cell.ns / max(cell.context_tokens, 1.0))
        changed_ns = token_ns * (tokens - key) + context_ns * (context_tokens - cell.context_tokens)
        return self._speed * max(cell.ns + changed_ns, MIN_SHARE * cell.ns)

    def _steps_of(self, cell: _Cell, step: int) -> float:
        """How many steps an entry rests on: fewer, the longer ago, and the more the device's speed has changed since,
        as that may have been another change than of the speed of all."""
        steps = max(cell.steps * exp((cell.seen_step - step) / FADE_STEPS), 0.25)
        changed = log(self._speed / cell.seen_speed) / self._noise
        return 1.0 / (1.0 / steps + changed * changed)


def bucket(tokens: int) -> int:
    """Each number up to 15 for itself, then eight to a doubling: the smallest number of the bucket."""
    width = 1 << max(tokens.bit_length() - 4, 0)
    return tokens - tokens % width
