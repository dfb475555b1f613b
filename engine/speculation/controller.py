"""Drafts as deep as pays: the depth with the most expected tokens a second, by measured acceptance and times."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.scheduling.cost import StepCostModel
from engine.speculation.catching_up import worth_drafting_for
from engine.speculation.options import Drafts, Option, Outlook, Step
from engine.speculation.policy import Candidate, SpeculationLoad, StepOutcome
from engine.speculation.trials import TrialBudget

CLEAR_GAIN = 1.01
"""A depth gives way to one that is predicted to be faster by this factor: a difference that noise does not make."""
WORTHWHILE_GAIN = 1.02
"""The same for drafts where there are none. They have costs that no rate shows: who has more luck with them ends before
the others, who then run in smaller steps."""
HOLD_STEPS = 16
"""A depth is kept for so many steps of its kind before it is judged again."""
FIRST_HOLD_STEPS = 3
"""The same for the first ones, while there is little to judge by."""
FIRST_JUDGEMENTS = 6
RECENT_STEPS = 256
"""Drafts that were granted in so many steps before are asked for again, however many could have them now."""
FIRST_DRAFTS, FIRST_DEPTH = 4, 2
"""A proposer of which nothing is known makes so many in a step, and so many for one request."""
GROWTH = 2
"""There are this many times as many as it has made before, at most: what lies further is guesswork, and a mistake is
noticed while it is small."""
TRIAL_STEPS = 2
"""A depth is tried for so many steps at a time. The first of a shape can be slow."""
TRIAL_REQUESTS = 2
"""Where drafts for all would cost too much for a trial, so many requests have them."""
TRIAL_TOKENS = 16
"""A request that ends sooner is not caught up with for a trial."""


class _Kind(NamedTuple):
    """Steps that are judged alike, beside how many of their requests could have drafts: whose drafts, for which class,
    and how many run."""

    proposer: str
    rank: int
    running: int


class _Question(NamedTuple):
    """Who of one class can have drafts of a proposer in a step. With those of other classes that have some anyway it is
    `requests` that can. Those with the least to catch up with come first."""

    step: Step
    proposer: str
    rank: int
    requests: int
    candidates: Sequence[Candidate]


class _Verdict(NamedTuple):
    """What each depth would bring, by depth, and which of them is chosen. There a token takes `saved_ns` less than
    without drafts, if what is uncertain about it turns out badly."""

    options: list[Option]
    depth: int

    @property
    def chosen(self) -> Option:
        return self.options[self.depth]

    @property
    def saved_ns(self) -> float:
        return max(1.0 / self.options[0].rate - self.chosen.doubtful_ns / self.chosen.tokens, 0.0)


@dataclass(slots=True)
class _Lease:
    """The depth that steps of a kind have, and until which step `granted` stands without being judged.

    It is for `requests` of them at most, and differs from `depth` during a trial: what that is expected to bring in a
    step would take `usual_ns` at `depth`, where a token takes `saved_ns` less than without drafts.
    """

    depth: int = 0
    granted: int = 0
    requests: int = 0
    until_step: int = 0
    judgements: int = 0
    in_trial: bool = False
    usual_ns: float = 0.0
    saved_ns: float = 0.0


class DepthController:
    """A `DepthPolicy` that drafts as deep as measurements say that it pays, and not at all where it does not.

    For each kind of step it knows the depth that was best when it judged last. It judges again every few steps, and
    changes for a clear gain only. What is uncertain and may be better than what is done is tried, within a share of
    all time: a depth that was never used, no drafts where there are always some, some drafts where there are none.

    Used on the engine thread; `saved_ns` may be read by any.
    """

    def __init__(self, cost_model: StepCostModel, *, most: int, below: int) -> None:
        """`most` drafts of a request; none at all where `below` requests run, or more."""
        self.saved_ns = 0
        self._most = most
        self._below = below
        self._outlook = Outlook(cost_model, most)
        self._step = 0
        self._leases: dict[_Kind, dict[int, _Lease]] = {}
        """By kind, and by how many of the requests could have drafts."""
        self._latest_depth: dict[tuple[str, int], int] = {}
        self._before = Drafts()
        """What the step to come has been granted so far."""
        self._budget = TrialBudget()

    def depth(self, proposer: str, rank: int, load: SpeculationLoad) -> int:
        """As many as there may be, where some are granted or it is time to judge again; none where saturated."""
        if load.running >= self._below:
            return 0
        leases = self._leases.get(_Kind(proposer, rank, coarse(load.running)), {})
        idle = any(lease.until_step > self._step for lease in leases.values()) and not any(
            lease.granted and lease.until_step > self._step - RECENT_STEPS for lease in leases.values()
        )
        return 0 if idle else self._most

    def choose(self, proposer: str, load: SpeculationLoad, candidates: Sequence[Candidate]) -> list[int]:
        """How many drafts each of the candidates gets. Asked once a step of each proposer, in their order."""
        chosen = [0] * len(candidates)
        ranks = Counter(each.rank for each in candidates if each.most)
        for rank, count in ranks.items():
            beside = sum(ranks[other] for other in ranks if other != rank and self._latest_depth.get((proposer, other)))
            own = [index for index, each in enumerate(candidates) if each.rank == rank and each.most]
            own.sort(key=lambda index: candidates[index].lag_tokens)
            step = Step(load.running, load.context_tokens, self._before)
            asked = _Question(step, proposer, rank, count + beside, [candidates[index] for index in own])
            for index, depth in zip(own, self._grant(asked), strict=True):
                chosen[index] = depth
        return chosen

    def _grant(self, asked: _Question) -> list[int]:
        """How many drafts each of those that are asked for gets."""
        proposer, candidates = asked.proposer, asked.candidates
        leases = self._leases.setdefault(_Kind(proposer, asked.rank, coarse(asked.step.running)), {})
        lease = leases.setdefault(coarse(asked.requests), _Lease())
        if lease.until_step <= self._step:
            self._judge(lease, asked)
        self._latest_depth[proposer, asked.rank] = lease.granted
        if lease.in_trial:
            self._budget.note_trial(lease.usual_ns)
        depths = [0] * len(candidates)
        if not lease.granted:
            return depths
        if lease.in_trial:
            takers = [index for index, each in enumerate(candidates) if self._is_fit_for_trial(each)]
        else:
            takers = self._takers(asked, lease.saved_ns)
        for index in takers[: lease.requests]:
            depths[index] = min(lease.granted, candidates[index].most)
        self._note_granted(proposer, asked.rank, [depth for depth in depths if depth])
        return depths

    def _note_granted(self, proposer: str, rank: int, depths: list[int]) -> None:
        if not depths:
            return
        gains = self._outlook.gains(proposer, rank, self._most).mean
        drafting_ns = self._outlook.drafting_ns(proposer, len(depths), max(depths))
        before = self._before
        self._before = Drafts(
            before.tokens + sum(depths),
            before.accepted + sum(gains[depth] for depth in depths),
            before.ns + drafting_ns,
        )

    def _lags(self, candidate: Candidate) -> bool:
        """Has the proposer more to compute than what came of the last step? That is in the price of drafting."""
        return candidate.lag_tokens > self._most + 1

    def _is_fit_for_trial(self, candidate: Candidate) -> bool:
        return not self._lags(candidate) or candidate.left_tokens >= TRIAL_TOKENS

    def _takers(self, asked: _Question, saved_ns: float) -> list[int]:
        """The indices of the candidates that it pays to draft for."""

        def catch_up_ns(each: Candidate) -> float:
            return self._outlook.catch_up_ns(asked.proposer, each.lag_tokens) if self._lags(each) else 0.0

        return worth_drafting_for(asked.candidates, saved_ns, catch_up_ns)

    def _judge(self, lease: _Lease, asked: _Question) -> None:
        """Say anew what the lease grants, and for how long."""
        verdict = self._verdict(lease.depth, asked, asked.requests)
        if verdict.depth:
            left_out = len(asked.candidates) - len(self._takers(asked, verdict.saved_ns))
            if asked.requests - left_out < verdict.chosen.requests:
                verdict = self._verdict(lease.depth, asked, asked.requests - left_out)
        was_in_trial = lease.in_trial
        lease.depth, lease.saved_ns = verdict.depth, verdict.saved_ns
        lease.judgements += 1
        begins = lease.judgements <= FIRST_JUDGEMENTS
        trial = None if was_in_trial and not begins else self._affordable_trial(asked, verdict)
        lease.in_trial = trial is not None
        granted = trial or verdict.chosen
        lease.granted, lease.requests = granted.depth, granted.requests
        lease.usual_ns = granted.tokens / verdict.chosen.rate
        steps = FIRST_HOLD_STEPS if begins else HOLD_STEPS
        lease.until_step = self._step + (TRIAL_STEPS if lease.in_trial else steps)

    def _verdict(self, depth: int, asked: _Question, requests: int) -> _Verdict:
        """What to do with so many requests, where steps of this kind are `depth` deep now."""
        options = self._options(depth, asked, requests)
        rates = [each.rate for each in options]
        best = max(range(len(rates)), key=rates.__getitem__)
        if rates[best] > (CLEAR_GAIN if depth else WORTHWHILE_GAIN) * rates[depth]:
            return _Verdict(options, best)
        return _Verdict(options, depth if rates[depth] > rates[0] else 0)

    def _options(self, depth: int, asked: _Question, requests: int) -> list[Option]:
        gains = self._outlook.gains(asked.proposer, asked.rank, depth)
        made = self._outlook.most_made(asked.proposer)
        deepest = min(self._most, max(GROWTH * made.depth, FIRST_DEPTH))
        most_drafts = max(GROWTH * made.drafts, FIRST_DRAFTS)
        return self._outlook.options(asked.step, asked.proposer, gains, requests, deepest, most_drafts)

    def _affordable_trial(self, asked: _Question, verdict: _Verdict) -> Option | None:
        """The option with most hope of being clearly better than the chosen one, of those that there is time for."""
        current, options = verdict.chosen, verdict.options
        if not current.depth and asked.requests > TRIAL_REQUESTS:
            options = options + self._options(0, asked, TRIAL_REQUESTS)
        lags = [each.lag_tokens for each in asked.candidates if self._is_fit_for_trial(each)]
        enough = CLEAR_GAIN * current.rate
        hopeful = [each for each in options if each.depth != current.depth and each.hopeful_rate > enough]
        for option in sorted(hopeful, key=lambda each: -each.hopeful_rate):
            cost_ns = TRIAL_STEPS * max(option.doubtful_ns - option.tokens / current.rate, 0.0)
            if not current.depth:
                if len(lags) < option.requests:
                    continue
                cost_ns += self._outlook.catch_up_ns(asked.proposer, sum(lags[: option.requests]))
            if self._budget.affords(cost_ns):
                return option
        return None

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step, and from what drafting for it took."""
        self._step += 1
        self._before = Drafts()
        self._outlook.observe(outcome)
        self._budget.observe(outcome)
        if outcome.drafting:
            self._note_saved(outcome)

    def _note_saved(self, outcome: StepOutcome) -> None:
        """Steps without drafts bring one token to each request. What would those have taken, for as many tokens?"""
        running, context_tokens = outcome.load.running, outcome.load.context_tokens
        accepted = sum(each.accepted for each in outcome.verified)
        plain_ns = self._outlook.plain_ns(running, context_tokens)
        taken_ns = float(outcome.elapsed_ns)
        if outcome.prefill_tokens:  # what the drafts added to such a step is not measured
            drafts = sum(each.drafts for each in outcome.verified)
            taken_ns = self._outlook.plain_ns(running + drafts, context_tokens)
        self.saved_ns += int(plain_ns * (1.0 + accepted / running) - taken_ns - outcome.drafting_ns)


def coarse(count: int) -> int:
    """Counts that are judged alike: each up to 7 for itself, then four to a doubling."""
    width = 1 << max(count.bit_length() - 3, 0)
    return count - count % width
