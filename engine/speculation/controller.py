"""Drafts as deep as pays: the depth with the most expected tokens a second, by measured acceptance and times."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.scheduling.cost import StepCostModel
from engine.speculation.options import Drafts, Option, Outlook, Step
from engine.speculation.policy import Candidate, SpeculationLoad, StepOutcome

CLEAR_GAIN = 1.01
"""A depth gives way to one that is predicted to be faster by this factor: a difference that noise does not make."""
HOLD_STEPS = 16
"""A depth is kept for so many steps of its kind before it is judged again."""
FIRST_HOLD_STEPS = 3
"""The same for the first ones, while there is little to judge by."""
FIRST_JUDGEMENTS = 6
RECENT_STEPS = 256
"""Drafts that were granted in so many steps before are asked for again, however many could have them now."""
TRIAL_STEPS = 2
"""A depth is tried for so many steps at a time. The first of a shape can be slow."""
TRIAL_REQUESTS = 2
"""Where drafts for all would cost too much for a trial, so many requests have them."""
TRIAL_SHARE = 0.01
"""Of all time, trials may cost this much."""
TRIAL_CREDIT_STEPS = 8
"""What trials may cost at once, in steps: at the start, and when none was needed for long."""
MEAN_STEPS = 64
"""So many steps, the latest, make the mean time of one."""
ANSWER_TOKENS_LEFT = 64
"""A request is expected to go on for this many tokens, and for as many as its answer has: most short, a few long."""


class _Kind(NamedTuple):
    """Steps that are judged alike, beside how many of their requests could have drafts: whose drafts, for which class,
    and how many run."""

    proposer: str
    rank: int
    running: int


@dataclass(slots=True)
class _Lease:
    """The depth that steps of a kind have, and until which step `granted` stands without being judged.

    `granted` differs from `depth` during a trial, which is for `requests` of them. `saved_ns` is by how much a token
    takes less at `depth` than without drafts.
    """

    depth: int = 0
    granted: int = 0
    requests: int | None = None
    until_step: int = 0
    judgements: int = 0
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
        self._mean_step_ns = 0.0
        self._credit_ns = 0.0

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
            self._choose_rank(proposer, load, candidates, rank, count + beside, chosen)
        return chosen

    def _choose_rank(
        self,
        proposer: str,
        load: SpeculationLoad,
        candidates: Sequence[Candidate],
        rank: int,
        requests: int,
        chosen: list[int],
    ) -> None:
        """Fill in what the candidates of one class get. `requests` could have drafts, those of other classes too."""
        own = [index for index, each in enumerate(candidates) if each.rank == rank and each.most]
        own.sort(key=lambda index: candidates[index].lag_tokens)
        leases = self._leases.setdefault(_Kind(proposer, rank, coarse(load.running)), {})
        lease = leases.setdefault(coarse(requests), _Lease())
        if lease.until_step <= self._step:
            step = Step(load.running, load.context_tokens, self._before)
            self._judge(lease, step, proposer, rank, requests, [candidates[index].lag_tokens for index in own])
        self._latest_depth[proposer, rank] = lease.granted
        if not lease.granted:
            return
        for index in own[: lease.requests]:
            if lease.requests is not None or self._pays(proposer, candidates[index], lease.saved_ns):
                chosen[index] = min(lease.granted, candidates[index].most)
        self._note_granted(proposer, rank, [chosen[index] for index in own if chosen[index]])

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

    def _pays(self, proposer: str, candidate: Candidate, saved_ns: float) -> bool:
        """Is what the proposer has to catch up with for a request less than what drafts will save in its answer?"""
        if candidate.lag_tokens <= self._most + 1:  # what came of the last step, at most: in the price of drafting
            return True
        tokens = min(candidate.left_tokens, ANSWER_TOKENS_LEFT + candidate.answer_tokens)
        return self._outlook.catch_up_ns(proposer, candidate.lag_tokens) < saved_ns * tokens

    def _judge(self, lease: _Lease, step: Step, proposer: str, rank: int, requests: int, lags: Sequence[int]) -> None:
        """Say anew what the lease grants, and for how long."""
        gains = self._outlook.gains(proposer, rank, lease.depth)
        options = self._outlook.options(step, proposer, gains, requests, range(self._most + 1))
        best = max(options, key=lambda option: option.rate)
        if not lease.judgements or best.rate > CLEAR_GAIN * options[lease.depth].rate:
            lease.depth = best.depth
        lease.judgements += 1
        current = options[lease.depth]
        lease.saved_ns = max(1.0 / options[0].rate - 1.0 / current.rate, 0.0)
        if not current.depth and requests > TRIAL_REQUESTS:
            options += self._outlook.options(step, proposer, gains, TRIAL_REQUESTS, range(1, self._most + 1))
        tried = lease.granted != lease.depth and lease.judgements > FIRST_JUDGEMENTS
        trial = None if tried else self._affordable_trial(proposer, current, options, lags)
        if trial is not None:
            lease.granted, lease.requests, steps = trial.depth, trial.requests, TRIAL_STEPS
        else:
            steps = FIRST_HOLD_STEPS if lease.judgements <= FIRST_JUDGEMENTS else HOLD_STEPS
            lease.granted, lease.requests = lease.depth, None
        lease.until_step = self._step + steps

    def _affordable_trial(
        self, proposer: str, current: Option, options: Sequence[Option], lags: Sequence[int]
    ) -> Option | None:
        """The option with most hope of being clearly better than the current one, of those that there is credit for."""
        enough = CLEAR_GAIN * current.rate
        hopeful = [each for each in options if each.depth != current.depth and each.hopeful_rate > enough]
        for option in sorted(hopeful, key=lambda each: -each.hopeful_rate):
            cost_ns = TRIAL_STEPS * max(option.doubtful_ns - option.tokens / current.rate, 0.0)
            if option.depth and not current.depth:
                cost_ns += self._outlook.catch_up_ns(proposer, sum(lags[: option.requests]))
            if cost_ns <= self._credit_ns:
                self._credit_ns -= cost_ns
                return option
        return None

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a step, and from what drafting for it took."""
        self._step += 1
        self._before = Drafts()
        self._outlook.observe(outcome)
        taken_ns = outcome.elapsed_ns + outcome.drafting_ns
        if self._mean_step_ns:
            self._mean_step_ns += (taken_ns - self._mean_step_ns) / MEAN_STEPS
            self._credit_ns += TRIAL_SHARE * taken_ns
            self._credit_ns = min(self._credit_ns, TRIAL_CREDIT_STEPS * self._mean_step_ns)
        else:
            self._mean_step_ns = taken_ns
            self._credit_ns = TRIAL_CREDIT_STEPS * taken_ns
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
