"""Forecasts the tokens and the time of a step for each draft depth, from measurements."""

from typing import NamedTuple

from engine.scheduling.cost import StepCostModel
from engine.speculation.acceptance import Acceptance, Gains
from engine.speculation.draft_cost import DraftCost, LargestDraft
from engine.speculation.policy import StepOutcome
from engine.speculation.step_times import StepTimes


class GrantedDrafts(NamedTuple):
    """Drafts that a step has already, for other proposers or classes: their number, how many are expected to be
    accepted, and the time of drafting them."""

    tokens: int = 0
    accepted: float = 0.0
    ns: float = 0.0


class UpcomingStep(NamedTuple):
    """The next step without the drafts to be decided: its running requests, the context that they read, and the drafts
    granted so far."""

    running: int
    context_tokens: int
    drafts: GrantedDrafts


class DepthCandidate(NamedTuple):
    """Predicted outcome of drafting `depth` tokens for each of `requests` requests: tokens and time of the step.

    `hopeful_rate`: the rate with every estimate better by its standard error. `doubtful_ns`: the time with every
    estimate worse by it.
    """

    depth: int
    requests: int
    tokens: float
    ns: float
    hopeful_rate: float
    doubtful_ns: float

    @property
    def rate(self) -> float:
        """Tokens per nanosecond."""
        return self.tokens / self.ns


class DepthForecast:
    """Predicts step times, drafting times, and acceptance by proposer and class. Learns from every step."""

    def __init__(self, cost_model: StepCostModel, max_depth: int) -> None:
        self._max_depth = max_depth
        self._times = StepTimes(cost_model)
        self._costs: dict[str, DraftCost] = {}
        self._acceptance: dict[tuple[str, int], Acceptance] = {}
        self._step = 0

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step. Steps with prefill do not contribute to the step times."""
        self._step += 1
        if not outcome.prefill_tokens:
            work = outcome.work
            self._times.observe(work.tokens, work.context_tokens, outcome.elapsed_ns, self._step)
        for drafting in outcome.drafting:
            self._cost_of(drafting.proposer).observe(drafting, self._step)
        for verified in outcome.verified:
            acceptance = self._acceptance_of(verified.proposer, verified.rank)
            acceptance.observe(verified.drafts, verified.accepted, self._step)

    def gains(self, proposer: str, rank: int, depth: int) -> Gains:
        """Expected accepted drafts of one request of a class, by depth. `depth`: the current one."""
        return self._acceptance_of(proposer, rank).gains(self._step, depth)

    def largest_draft(self, proposer: str) -> LargestDraft:
        """The largest drafts that the proposer has made."""
        return self._cost_of(proposer).largest

    def catch_up_ns(self, proposer: str, tokens: int) -> float:
        """The time in which the proposer computes `tokens` tokens that it lags behind."""
        return self._cost_of(proposer).catch_up_ns(tokens)

    def candidates(
        self, step: UpcomingStep, proposer: str, gains: Gains, requests: int, deepest: int, max_drafts: int
    ) -> list[DepthCandidate]:
        """The outcome of each depth from 0 to `deepest` for `requests` requests, or for as many of them as have
        `max_drafts` drafts together; at least one."""
        return [
            self._candidate(step, proposer, gains, min(requests, max(max_drafts // max(depth, 1), 1)), depth)
            for depth in range(deepest + 1)
        ]

    def _candidate(self, step: UpcomingStep, proposer: str, gains: Gains, requests: int, depth: int) -> DepthCandidate:
        step_time = self._times.predict(
            step.running + step.drafts.tokens + requests * depth, step.context_tokens, self._step
        )
        drafting = self._cost_of(proposer).predict(requests, depth, self._step)
        others = step.running + step.drafts.accepted
        tokens = others + requests * gains.mean[depth]
        ns = step_time.ns + drafting.ns + step.drafts.ns
        doubt_ns = step_time.ns * step_time.error + drafting.ns * drafting.error
        hopeful_rate = (others + requests * gains.hopeful[depth]) / max(ns - doubt_ns, 1.0)
        return DepthCandidate(depth, requests, tokens, max(ns, 1.0), hopeful_rate, ns + doubt_ns)

    def drafting_ns(self, proposer: str, requests: int, depth: int) -> float:
        """The time of drafting `depth` tokens for each of `requests` requests."""
        return self._cost_of(proposer).predict(requests, depth, self._step).ns

    def plain_ns(self, running: int, context_tokens: int) -> float:
        """The time of a decode step of `running` requests without drafts."""
        return self._times.predict(running, context_tokens, self._step).ns

    def _cost_of(self, proposer: str) -> DraftCost:
        return self._costs.setdefault(proposer, DraftCost())

    def _acceptance_of(self, proposer: str, rank: int) -> Acceptance:
        return self._acceptance.setdefault((proposer, rank), Acceptance(self._max_depth))
