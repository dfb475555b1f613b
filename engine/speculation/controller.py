"""Adaptive draft depth: the depth with the highest expected token rate, from measured acceptance and step times.

Speculative decoding: Leviathan et al. 2023, Fast Inference from Transformers via Speculative Decoding; Chen et al.
2023, Accelerating Large Language Model Decoding with Speculative Sampling.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.scheduling.cost import StepCostModel
from engine.speculation.depth_forecast import DepthCandidate, DepthForecast, GrantedDrafts, UpcomingStep
from engine.speculation.draft_catchup import worth_drafting_for
from engine.speculation.exploration import ExplorationBudget
from engine.speculation.policy import Candidate, SpeculationLoad, StepOutcome

CLEAR_GAIN = 1.01
"""The factor by which another depth must be predicted to be faster to replace the current one. Exceeds noise."""
WORTHWHILE_GAIN = 1.02
"""The same for starting to draft. Drafts have costs that no rate shows: requests with more accepted drafts end earlier,
and the others then run in smaller steps."""
HOLD_STEPS = 16
"""Steps of a kind for which a depth is held before it is evaluated again."""
FIRST_HOLD_STEPS = 3
"""The same for the first evaluations, which have few measurements."""
FIRST_EVALUATIONS = 6
RECENT_STEPS = 256
"""Drafts granted within this many steps are requested again, for any number of requests that can have some."""
FIRST_DRAFTS, FIRST_DEPTH = 4, 2
"""The first drafts of a proposer: in a step, and for one request."""
GROWTH = 2
"""The factor by which drafts may exceed the largest number made before: predictions beyond it are unreliable, and a
mistake is noticed while it is small."""
EXPLORATION_STEPS = 2
"""Steps of one exploration. The first step of a shape can be slow."""
EXPLORATION_REQUESTS = 2
"""The number of requests that get drafts where exploring with all of them would cost too much."""
EXPLORATION_TOKENS = 16
"""Minimum tokens left in a request to catch up with it for an exploration."""


class _StepKind(NamedTuple):
    """Steps that share their depths: same proposer, class and number of running requests. Within a kind, depths also
    depend on the number of requests that can have drafts."""

    proposer: str
    rank: int
    running: int


class _Question(NamedTuple):
    """The requests of one class that can have drafts of a proposer in a step.

    `requests`: their number, plus those of other classes that have drafts anyway.
    `candidates`: ordered by the tokens that the proposer lags behind, the fewest first.
    """

    step: UpcomingStep
    proposer: str
    rank: int
    requests: int
    candidates: Sequence[Candidate]


class _Verdict(NamedTuple):
    """The predicted outcome of each depth, and the chosen depth.

    `saved_ns`: a lower estimate of the time that a token takes less with the chosen depth than without drafts.
    """

    options: list[DepthCandidate]
    depth: int

    @property
    def chosen(self) -> DepthCandidate:
        return self.options[self.depth]

    @property
    def saved_ns(self) -> float:
        return max(1.0 / self.options[0].rate - self.chosen.doubtful_ns / self.chosen.tokens, 0.0)


@dataclass(slots=True)
class _DepthHold:
    """The depth of one kind of step, held until `until_step`.

    `depth`: the best depth at the last evaluation. `granted`: the depth in use, which differs while exploring.
    `requests`: the maximum number of requests that get drafts.
    `baseline_ns`: while exploring, the time of the expected tokens at `depth`.
    `saved_ns`: the time that a token takes less than without drafts.
    """

    depth: int = 0
    granted: int = 0
    requests: int = 0
    until_step: int = 0
    evaluations: int = 0
    is_exploring: bool = False
    baseline_ns: float = 0.0
    saved_ns: float = 0.0


class DepthController:
    """A `DepthPolicy` that drafts as deep as measurements justify, and not at all where drafts do not pay.

    For each kind of step it holds the depth that was best at its last evaluation. It evaluates again every few steps
    and changes the depth only for a clear gain. Uncertain alternatives that may be better are explored within a fixed
    share of all time: a depth that was never used, no drafts where there are always some, drafts where there are none.

    Used on the engine thread; `saved_ns` may be read by any thread.
    """

    def __init__(self, cost_model: StepCostModel, *, max_depth: int, below: int) -> None:
        """`max_depth`: maximum drafts of a request. `below`: no drafts where this many requests run, or more."""
        self.saved_ns = 0
        self._max_depth = max_depth
        self._below = below
        self._forecast = DepthForecast(cost_model, max_depth)
        self._step = 0
        self._holds: dict[_StepKind, dict[int, _DepthHold]] = {}
        """By kind, then by the number of requests that can have drafts."""
        self._latest_depth: dict[tuple[str, int], int] = {}
        self._granted = GrantedDrafts()
        """The drafts granted for the upcoming step so far."""
        self._budget = ExplorationBudget()

    def depth(self, proposer: str, rank: int, load: SpeculationLoad) -> int:
        """`max_depth` where drafts are granted or an evaluation is due; 0 otherwise, or where the load is too high."""
        if load.running >= self._below:
            return 0
        holds = self._holds.get(_StepKind(proposer, rank, coarse(load.running)), {})
        idle = any(hold.until_step > self._step for hold in holds.values()) and not any(
            hold.granted and hold.until_step > self._step - RECENT_STEPS for hold in holds.values()
        )
        return 0 if idle else self._max_depth

    def choose(self, proposer: str, load: SpeculationLoad, candidates: Sequence[Candidate]) -> list[int]:
        """The number of drafts of each candidate. Called once per step and proposer, in the proposers' order."""
        chosen = [0] * len(candidates)
        ranks = Counter(candidate.rank for candidate in candidates if candidate.max_drafts)
        for rank, count in ranks.items():
            others = sum(ranks[other] for other in ranks if other != rank and self._latest_depth.get((proposer, other)))
            own = [
                index for index, candidate in enumerate(candidates) if candidate.rank == rank and candidate.max_drafts
            ]
            own.sort(key=lambda index: candidates[index].lag_tokens)
            step = UpcomingStep(load.running, load.context_tokens, self._granted)
            question = _Question(step, proposer, rank, count + others, [candidates[index] for index in own])
            for index, depth in zip(own, self._grant(question), strict=True):
                chosen[index] = depth
        return chosen

    def _grant(self, question: _Question) -> list[int]:
        """The number of drafts of each candidate of the question."""
        proposer, candidates = question.proposer, question.candidates
        holds = self._holds.setdefault(_StepKind(proposer, question.rank, coarse(question.step.running)), {})
        hold = holds.setdefault(coarse(question.requests), _DepthHold())
        if hold.until_step <= self._step:
            self._evaluate(hold, question)
        self._latest_depth[proposer, question.rank] = hold.granted
        if hold.is_exploring:
            self._budget.record_exploration(hold.baseline_ns)
        depths = [0] * len(candidates)
        if not hold.granted:
            return depths
        if hold.is_exploring:
            takers = [index for index, candidate in enumerate(candidates) if self._can_explore(candidate)]
        else:
            takers = self._takers(question, hold.saved_ns)
        for index in takers[: hold.requests]:
            depths[index] = min(hold.granted, candidates[index].max_drafts)
        self._record_granted(proposer, question.rank, [depth for depth in depths if depth])
        return depths

    def _record_granted(self, proposer: str, rank: int, depths: list[int]) -> None:
        if not depths:
            return
        gains = self._forecast.gains(proposer, rank, self._max_depth).mean
        drafting_ns = self._forecast.drafting_ns(proposer, len(depths), max(depths))
        granted = self._granted
        self._granted = GrantedDrafts(
            granted.tokens + sum(depths),
            granted.accepted + sum(gains[depth] for depth in depths),
            granted.ns + drafting_ns,
        )

    def _lags(self, candidate: Candidate) -> bool:
        """Whether the proposer has more to compute than the tokens of the last step, which the cost of drafting
        includes."""
        return candidate.lag_tokens > self._max_depth + 1

    def _can_explore(self, candidate: Candidate) -> bool:
        return not self._lags(candidate) or candidate.left_tokens >= EXPLORATION_TOKENS

    def _takers(self, question: _Question, saved_ns: float) -> list[int]:
        """The indices of the candidates for which drafting pays."""

        def catch_up_ns(candidate: Candidate) -> float:
            if not self._lags(candidate):
                return 0.0
            return self._forecast.catch_up_ns(question.proposer, candidate.lag_tokens)

        return worth_drafting_for(question.candidates, saved_ns, catch_up_ns)

    def _evaluate(self, hold: _DepthHold, question: _Question) -> None:
        """Choose what the hold grants, and for how many steps."""
        verdict = self._verdict(hold.depth, question, question.requests)
        if verdict.depth:
            left_out = len(question.candidates) - len(self._takers(question, verdict.saved_ns))
            if question.requests - left_out < verdict.chosen.requests:
                verdict = self._verdict(hold.depth, question, question.requests - left_out)
        was_exploring = hold.is_exploring
        hold.depth, hold.saved_ns = verdict.depth, verdict.saved_ns
        hold.evaluations += 1
        is_new = hold.evaluations <= FIRST_EVALUATIONS
        exploration = None if was_exploring and not is_new else self._affordable_exploration(question, verdict)
        hold.is_exploring = exploration is not None
        granted = exploration or verdict.chosen
        hold.granted, hold.requests = granted.depth, granted.requests
        hold.baseline_ns = granted.tokens / verdict.chosen.rate
        steps = FIRST_HOLD_STEPS if is_new else HOLD_STEPS
        hold.until_step = self._step + (EXPLORATION_STEPS if hold.is_exploring else steps)

    def _verdict(self, depth: int, question: _Question, requests: int) -> _Verdict:
        """Choose the depth for `requests` requests where `depth` is the current one."""
        options = self._options(depth, question, requests)
        rates = [option.rate for option in options]
        best = max(range(len(rates)), key=rates.__getitem__)
        if rates[best] > (CLEAR_GAIN if depth else WORTHWHILE_GAIN) * rates[depth]:
            return _Verdict(options, best)
        return _Verdict(options, depth if rates[depth] > rates[0] else 0)

    def _options(self, depth: int, question: _Question, requests: int) -> list[DepthCandidate]:
        gains = self._forecast.gains(question.proposer, question.rank, depth)
        largest = self._forecast.largest_draft(question.proposer)
        deepest = min(self._max_depth, max(GROWTH * largest.depth, FIRST_DEPTH))
        max_drafts = max(GROWTH * largest.drafts, FIRST_DRAFTS)
        return self._forecast.candidates(question.step, question.proposer, gains, requests, deepest, max_drafts)

    def _affordable_exploration(self, question: _Question, verdict: _Verdict) -> DepthCandidate | None:
        """The option with the highest optimistic rate that is clearly above the chosen one's, within the budget."""
        current, options = verdict.chosen, verdict.options
        if not current.depth and question.requests > EXPLORATION_REQUESTS:
            options = options + self._options(0, question, EXPLORATION_REQUESTS)
        lags = [candidate.lag_tokens for candidate in question.candidates if self._can_explore(candidate)]
        enough = CLEAR_GAIN * current.rate
        hopeful = [option for option in options if option.depth != current.depth and option.hopeful_rate > enough]
        for option in sorted(hopeful, key=lambda option: -option.hopeful_rate):
            cost_ns = EXPLORATION_STEPS * max(option.doubtful_ns - option.tokens / current.rate, 0.0)
            if not current.depth:
                if len(lags) < option.requests:
                    continue
                cost_ns += self._forecast.catch_up_ns(question.proposer, sum(lags[: option.requests]))
            if self._budget.affords(cost_ns):
                return option
        return None

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step and the drafting for it."""
        self._step += 1
        self._granted = GrantedDrafts()
        self._forecast.observe(outcome)
        self._budget.observe(outcome)
        if outcome.drafting:
            self._record_saved(outcome)

    def _record_saved(self, outcome: StepOutcome) -> None:
        """Compare with steps without drafts, which produce one token per request, for as many tokens."""
        running, context_tokens = outcome.load.running, outcome.load.context_tokens
        accepted = sum(verified.accepted for verified in outcome.verified)
        plain_ns = self._forecast.plain_ns(running, context_tokens)
        taken_ns = float(outcome.elapsed_ns)
        if outcome.prefill_tokens:  # the drafts' part of such a step is not measured
            drafts = sum(verified.drafts for verified in outcome.verified)
            taken_ns = self._forecast.plain_ns(running + drafts, context_tokens)
        self.saved_ns += int(plain_ns * (1.0 + accepted / running) - taken_ns - outcome.drafting_ns)


def coarse(count: int) -> int:
    """Round a count down to its bucket: exact up to 7, then four buckets per doubling."""
    width = 1 << max(count.bit_length() - 3, 0)
    return count - count % width
