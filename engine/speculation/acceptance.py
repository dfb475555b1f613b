"""How many drafts are accepted, by their position: a moving estimate."""

from math import exp, sqrt
from typing import NamedTuple

MEMORY_ROWS = 512
"""So many verified rows, the latest, make the estimate."""
FADE_STEPS = 1024
"""After so many steps without a draft, what was seen before counts for a third: the traffic may be another."""
PRIOR_ACCEPTANCE = 0.7
"""Of a first draft, before any was verified. Hopeful: a trial shows soon that it is wrong, pessimism never."""
PRIOR_ROWS = 4.0
"""What is believed beforehand counts like so many rows."""


class Gains(NamedTuple):
    """Drafts expected to be accepted of `depth` proposed: `mean[depth]`, and `hopeful[depth]` where the positions that
    are not verified now are better than estimated by a standard error. Both start with 0 for no draft."""

    mean: tuple[float, ...]
    hopeful: tuple[float, ...]


class Acceptance:
    """The acceptance of drafts by position, each given that all before it were accepted.

    By position, as one rate would not do: the second draft of a draft model is accepted more rarely than the first,
    while a copy that went well so far mostly goes on. A position's estimate starts at that of the one before it, so
    that depths that were never tried have one.
    """

    def __init__(self, most: int) -> None:
        self._reached = [0.0] * most
        self._accepted = [0.0] * most
        self._seen_step = 0

    def observe(self, drafts: int, accepted: int, step: int) -> None:
        """Of `drafts` verified drafts of a row, the first `accepted` were. Steps are counted by the caller."""
        self._fade(step)
        keep = 1.0 - 1.0 / MEMORY_ROWS
        for position in range(min(drafts, accepted + 1, len(self._reached))):
            self._reached[position] = keep * self._reached[position] + 1.0
            self._accepted[position] = keep * self._accepted[position] + (position < accepted)

    def gains(self, step: int, verified: int) -> Gains:
        """What each depth from 0 on brings, by what is known at this step. The first `verified` positions are verified
        all the time, so that nothing is to be learnt of them by a trial."""
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
            self._reached = [keep * each for each in self._reached]
            self._accepted = [keep * each for each in self._accepted]
