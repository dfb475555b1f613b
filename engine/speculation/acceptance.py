"""Moving estimates of the acceptance rate of drafts, by position (the alpha of Leviathan et al. 2023)."""

from math import exp, sqrt
from typing import NamedTuple

MEMORY_ROWS = 512
"""Verified rows in the moving estimate."""
FADE_STEPS = 1024
"""Time constant in steps without a draft: older measurements then count for 1/e, as the traffic may have changed."""
PRIOR_ACCEPTANCE = 0.7
"""Prior acceptance rate of the first draft token. Optimistic on purpose: one exploration corrects an optimistic prior,
a pessimistic one is never tested."""
PRIOR_ROWS = 4.0
"""The weight of the prior, in rows."""


class Gains(NamedTuple):
    """Expected accepted drafts of `depth` proposed ones: `mean[depth]`. `hopeful[depth]`: the same, with the positions
    that are not verified now better than estimated by a standard error. Both start with 0 for depth 0."""

    mean: tuple[float, ...]
    hopeful: tuple[float, ...]


class Acceptance:
    """The acceptance rate at each position, given that all earlier drafts were accepted.

    One rate for all positions would be wrong: a draft model's second draft is accepted less often than its first, while
    an n-gram match that was right so far mostly stays right. The prior of a position is the estimate of the one before
    it, so depths that were never tried have an estimate.
    """

    def __init__(self, max_depth: int) -> None:
        self._reached = [0.0] * max_depth
        self._accepted = [0.0] * max_depth
        self._seen_step = 0

    def observe(self, drafts: int, accepted: int, step: int) -> None:
        """Record a row: `accepted` is the length of the accepted prefix of its `drafts` drafts. `step`: the caller's
        step number."""
        self._fade(step)
        keep = 1.0 - 1.0 / MEMORY_ROWS
        for position in range(min(drafts, accepted + 1, len(self._reached))):
            self._reached[position] = keep * self._reached[position] + 1.0
            self._accepted[position] = keep * self._accepted[position] + (position < accepted)

    def gains(self, step: int, verified: int) -> Gains:
        """The gains of each depth from 0 on. `verified`: the number of positions that every step verifies, about which
        exploration would teach nothing."""
        self._fade(step)
        mean, hopeful = [0.0], [0.0]
        all_mean = all_hopeful = 1.0
        rate = PRIOR_ACCEPTANCE
        for position, (reached, accepted) in enumerate(zip(self._reached, self._accepted, strict=True)):
            rows = reached + PRIOR_ROWS
            rate = (accepted + PRIOR_ROWS * rate) / rows
            error = sqrt(rate * (1.0 - rate) / rows) if position >= verified else 0.0
            all_mean *= rate
            all_hopeful *= min(rate + error, 1.0)
            mean.append(mean[-1] + all_mean)
            hopeful.append(hopeful[-1] + all_hopeful)
        return Gains(tuple(mean), tuple(hopeful))

    def _fade(self, step: int) -> None:
        if step > self._seen_step:
            keep = exp((self._seen_step - step) / FADE_STEPS)
            self._seen_step = step
            self._reached = [keep * rows for rows in self._reached]
            self._accepted = [keep * rows for rows in self._accepted]
