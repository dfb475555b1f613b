"""The budget of exploring draft depths: a hundredth of all engine time."""

from engine.speculation.policy import StepOutcome

EXPLORATION_SHARE = 0.01
"""The fraction of all time that exploration may cost."""
START_STEPS, MAX_STEPS = 1, 4
"""The initial and the maximum credit, in mean step times."""
MEAN_STEPS = 64
"""Steps in the moving average of step times."""


class ExplorationBudget:
    """The time that may be lost by trying depths that are not known to be best.

    An exploration starts when the credit covers its expected loss. Its actual loss is charged after each of its steps:
    the time of the step, including drafting and catching up, beyond the time of as many tokens at the best known depth.
    Drafts count with their expected acceptance, so that chance neither adds to the credit nor reduces it.
    """

    def __init__(self) -> None:
        self._credit_ns = 0.0
        self._mean_step_ns = 0.0
        self._baseline_ns: float | None = None

    def affords(self, cost_ns: float) -> bool:
        """Whether the credit covers a loss of `cost_ns`."""
        return cost_ns <= self._credit_ns

    def record_exploration(self, baseline_ns: float) -> None:
        """The next step explores. `baseline_ns`: the time of its expected tokens at the best known depth."""
        self._baseline_ns = baseline_ns

    def observe(self, outcome: StepOutcome) -> None:
        """Record a step. In a step with prefill, only the time of drafting counts as the loss."""
        taken_ns = outcome.elapsed_ns + outcome.drafting_ns
        self._credit_ns += EXPLORATION_SHARE * taken_ns
        if not outcome.prefill_tokens:
            if not self._mean_step_ns:
                self._mean_step_ns = taken_ns
                self._credit_ns += START_STEPS * taken_ns
            self._mean_step_ns += (taken_ns - self._mean_step_ns) / MEAN_STEPS
        self._credit_ns = min(self._credit_ns, MAX_STEPS * self._mean_step_ns)
        if self._baseline_ns is not None:
            baseline_ns = outcome.elapsed_ns if outcome.prefill_tokens else self._baseline_ns
            self._credit_ns -= taken_ns - baseline_ns
            self._baseline_ns = None
