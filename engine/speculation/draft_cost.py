"""The measured time of drafting."""

from typing import NamedTuple

from engine.scheduling.cost import StepCostModel, StepWork
from engine.speculation.policy import Drafting
from engine.speculation.step_times import Estimate, StepTimes


class LargestDraft(NamedTuple):
    """The maximum number of drafts that a proposer has made for a step, and for one request."""

    drafts: int
    depth: int


class DraftCost:
    """Predicts the time of drafting: `depth` forward passes of the draft model, each with one token per request.
    Tokens to catch up with are priced per token."""

    def __init__(self) -> None:
        self._cost_model = StepCostModel()
        self._forwards = StepTimes(self._cost_model)
        self.largest = LargestDraft(0, 0)
        self._tried = False

    def observe(self, drafting: Drafting, step: int) -> None:
        """Learn from one drafting. The mean time of its forward passes counts."""
        self.largest = LargestDraft(
            max(self.largest.drafts, drafting.proposed), max(self.largest.depth, drafting.depth)
        )
        forwards = max(drafting.depth, 1)
        forward_ns = drafting.elapsed_ns // forwards
        beyond = max(drafting.lag_tokens - drafting.requests, 0)
        tokens = drafting.requests + -(-beyond // forwards)
        if not tokens or forward_ns <= 0:
            return
        self._cost_model.observe(StepWork(tokens, 0, 0, max(drafting.requests, 1)), forward_ns)
        if beyond <= drafting.requests:  # one token always lags: the one that the target sampled after accepted drafts
            self._forwards.observe(drafting.requests, 0, forward_ns, step)
            self._tried = True

    def predict(self, requests: int, depth: int, step: int) -> Estimate:
        """The time of drafting `depth` tokens for each of `requests` requests; 0 before the first measurement."""
        if not requests or not depth or not self._tried:
            return Estimate(0.0, 0.0)
        forward = self._forwards.predict(requests, 0, step)
        return Estimate(depth * forward.ns, forward.error)

    def catch_up_ns(self, tokens: int) -> float:
        """The time of computing `tokens` tokens that the draft model lags behind; 0 before the first measurement."""
        return self._cost_model.coefficients.token_ns * tokens if self._tried else 0.0
