"""What it costs a proposer to draft, as it was measured."""

from typing import NamedTuple

from engine.scheduling.cost import StepCostModel, StepWork
from engine.speculation.policy import Drafting
from engine.speculation.step_times import Estimate, StepTimes


class Most(NamedTuple):
    """How many drafts a proposer has made for a step, and for one request, at most."""

    drafts: int
    depth: int


class DraftCost:
    """The time of drafting for some requests to some depth: so many forward passes of the small model, each with a
    token for every request. What a proposer catches up with is priced by the token."""

    def __init__(self) -> None:
        self._cost_model = StepCostModel()
        self._forwards = StepTimes(self._cost_model)
        self.most = Most(0, 0)
        self._tried = False

    def observe(self, drafting: Drafting, step: int) -> None:
        """Learn from a drafting that took `elapsed_ns`. Of its passes the mean one counts."""
        self.most = Most(max(self.most.drafts, drafting.proposed), max(self.most.depth, drafting.depth))
        forwards = max(drafting.depth, 1)
        forward_ns = drafting.elapsed_ns // forwards
        beyond = max(drafting.lag_tokens - drafting.requests, 0)
        tokens = drafting.requests + -(-beyond // forwards)
        if not tokens or forward_ns <= 0:
            return
        self._cost_model.observe(StepWork(tokens, 0, 0, max(drafting.requests, 1)), forward_ns)
        if beyond <= drafting.requests:  # the token that the target added to those that it accepted lags always
            self._forwards.observe(drafting.requests, 0, forward_ns, step)
            self._tried = True

    def predict(self, requests: int, depth: int, step: int) -> Estimate:
        """What it takes to draft `depth` tokens for each of so many requests. Nothing, until it was tried."""
        if not requests or not depth or not self._tried:
            return Estimate(0.0, 0.0)
        forward = self._forwards.predict(requests, 0, step)
        return Estimate(depth * forward.ns, forward.error)

    def catch_up_ns(self, tokens: int) -> float:
        """What it takes to compute so many tokens that lag behind."""
        return self._cost_model.coefficients.token_ns * tokens if self._tried else 0.0
