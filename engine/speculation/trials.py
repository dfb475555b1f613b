"""What trials may cost, and have cost: a hundredth of all time, by the clock."""

from engine.speculation.policy import StepOutcome

TRIAL_SHARE = 0.01
"""Of all time, trials may cost this much."""
START_STEPS, MOST_STEPS = 1, 4
"""What they may cost at once, in steps: at the start, and when none was needed for long."""
MEAN_STEPS = 64
"""So many steps, the latest, make the mean time of one."""


class TrialBudget:
    """Time that may be lost by doing what is not known to be best.

    A trial is begun where what it is expected to lose is there. What it has lost is counted when a step of it is over:
    all that the step took, with the drafting and what that had to catch up with, beyond what as many tokens take
    otherwise. Luck with drafts is neither won nor lost: they count as those that are expected to be accepted.
    """

    def __init__(self) -> None:
        self._credit_ns = 0.0
        self._mean_step_ns = 0.0
        self._usual_ns: float | None = None

    def affords(self, cost_ns: float) -> bool:
        return cost_ns <= self._credit_ns

    def note_trial(self, usual_ns: float) -> None:
        """The step to come has a trial in it. The tokens that it is expected to bring take so long otherwise."""
        self._usual_ns = usual_ns

    def observe(self, outcome: StepOutcome) -> None:
        """A step was computed. Of one that carries prompts nothing is known but what the drafting took."""
        taken_ns = outcome.elapsed_ns + outcome.drafting_ns
        self._credit_ns += TRIAL_SHARE * taken_ns
        if not outcome.prefill_tokens:
            if not self._mean_step_ns:
                self._mean_step_ns = taken_ns
                self._credit_ns += START_STEPS * taken_ns
            self._mean_step_ns += (taken_ns - self._mean_step_ns) / MEAN_STEPS
        self._credit_ns = min(self._credit_ns, MOST_STEPS * self._mean_step_ns)
        if self._usual_ns is not None:
            usual_ns = outcome.elapsed_ns if outcome.prefill_tokens else self._usual_ns
            self._credit_ns -= taken_ns - usual_ns
            self._usual_ns = None
