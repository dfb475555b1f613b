"""What each depth would bring and cost in a step, by what was measured so far."""

from typing import NamedTuple

from engine.scheduling.cost import StepCostModel
from engine.speculation.acceptance import Acceptance, Gains
from engine.speculation.draft_cost import DraftCost, Most
from engine.speculation.policy import StepOutcome
from engine.speculation.step_times import StepTimes


class Drafts(NamedTuple):
    """Drafts that a step has already, of proposers that were asked before: how many, how many of them are expected to
    be accepted, and the time that they took to make."""

    tokens: int = 0
    accepted: float = 0.0
    ns: float = 0.0


class Step(NamedTuple):
    """A step to come, but for the drafts that are to be decided: its requests, the context that they read."""

    running: int
    context_tokens: int
    drafts: Drafts


class Option(NamedTuple):
    """So many drafts for each of so many requests: the tokens that the whole step then brings, and the time it takes.

    `hopeful_rate` is the rate if what is uncertain turns out well, each figure better by its standard error;
    `doubtful_ns` the time if it turns out badly.
    """

    depth: int
    requests: int
    tokens: float
    ns: float
    hopeful_rate: float
    doubtful_ns: float

    @property
    def rate(self) -> float:
        """Tokens a nanosecond."""
        return self.tokens / self.ns


class Outlook:
    """Learns from every step, and predicts: times of steps, costs of proposers, acceptance by proposer and class."""

    def __init__(self, cost_model: StepCostModel, most: int) -> None:
        self._most = most
        self._times = StepTimes(cost_model)
        self._costs: dict[str, DraftCost] = {}
        self._acceptance: dict[tuple[str, int], Acceptance] = {}
        self._step = 0

    def observe(self, outcome: StepOutcome) -> None:
        """A step was computed. Its time says what one of so many tokens takes where there was no prefill in it."""
        self._step += 1
        if not outcome.prefill_tokens:
            work = outcome.work
            self._times.observe(work.tokens, work.context_tokens, outcome.elapsed_ns, self._step)
        for drafting in outcome.drafting:
            self._cost_of(drafting.proposer).observe(drafting, self._step)
        for each in outcome.verified:
            self._acceptance_of(each.proposer, each.rank).observe(each.drafts, each.accepted, self._step)

    def gains(self, proposer: str, rank: int, depth: int) -> Gains:
        """What drafts bring to one request of a class, by depth. They are `depth` deep now."""
        return self._acceptance_of(proposer, rank).gains(self._step, depth)

    def most_made(self, proposer: str) -> Most:
        """What it has made so far."""
        return self._cost_of(proposer).most

    def catch_up_ns(self, proposer: str, tokens: int) -> float:
        return self._cost_of(proposer).catch_up_ns(tokens)

    def options(
        self, step: Step, proposer: str, gains: Gains, requests: int, deepest: int, most_drafts: int
    ) -> list[Option]:
        """What the step would be with each depth from 0 on for so many requests, or for as many of them as may have
        `most_drafts` together; for one at least."""
        return [
            self._option(step, proposer, gains, min(requests, max(most_drafts // max(depth, 1), 1)), depth)
            for depth in range(deepest + 1)
        ]

    def _option(self, step: Step, proposer: str, gains: Gains, requests: int, depth: int) -> Option:
        took = self._times.predict(
            step.running + step.drafts.tokens + requests * depth, step.context_tokens, self._step
        )
        drafting = self._cost_of(proposer).predict(requests, depth, self._step)
        others = step.running + step.drafts.accepted
        tokens = others + requests * gains.mean[depth]
        ns = took.ns + drafting.ns + step.drafts.ns
        doubt_ns = took.ns * took.error + drafting.ns * drafting.error
        hopeful_rate = (others + requests * gains.hopeful[depth]) / max(ns - doubt_ns, 1.0)
        return Option(depth, requests, tokens, max(ns, 1.0), hopeful_rate, ns + doubt_ns)

    def drafting_ns(self, proposer: str, requests: int, depth: int) -> float:
        return self._cost_of(proposer).predict(requests, depth, self._step).ns

    def plain_ns(self, running: int, context_tokens: int) -> float:
        """A decode step of so many requests without drafts."""
        return self._times.predict(running, context_tokens, self._step).ns

    def _cost_of(self, proposer: str) -> DraftCost:
        return self._costs.setdefault(proposer, DraftCost())

    def _acceptance_of(self, proposer: str, rank: int) -> Acceptance:
        return self._acceptance.setdefault((proposer, rank), Acceptance(self._most))
