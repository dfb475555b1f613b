"""Drafts for a step: calls proposers and the policy, and reports the results."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.request import Request
from engine.scheduling.cost import StepWork
from engine.scheduling.drafting import DraftCapacity
from engine.scheduling.plan import StepPlan, StepResult
from engine.scheduling.stats import SpeculationStats
from engine.speculation.policy import Candidate, DepthPolicy, Drafting, SpeculationLoad, StepOutcome, Verified
from engine.speculation.proposer import DraftWant, Proposer
from engine.speculation.tally import DraftTally


@dataclass(frozen=True, slots=True)
class ProposerCall:
    """One call of a proposer: the requests to draft for, and the time that it took."""

    requests: tuple[Request, ...]
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class Proposals:
    """The drafts for a step. `by`: the name of the proposer of each request's drafts."""

    load: SpeculationLoad
    drafts: Mapping[Request, tuple[int, ...]] = field(default_factory=dict)
    by: Mapping[Request, str] = field(default_factory=dict)
    calls: tuple[ProposerCall, ...] = ()
    drafting: tuple[Drafting, ...] = ()


class Speculator:
    """Calls the proposers in order; each is called for the requests that have no drafts from earlier ones.

    It keeps no state between steps except metrics: the `Proposals` of a step are passed to `observe` with its result.
    """

    def __init__(
        self,
        proposers: Sequence[Proposer],
        policy: DepthPolicy,
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._proposers = proposers
        self._policy = policy
        self._now_ns = now_ns
        self._tally = DraftTally()

    def wants(self, load: SpeculationLoad, ranks: Iterable[int]) -> bool:
        """Whether any proposer would be called at this load for requests of classes of these ranks. O(proposers x
        classes)."""
        return any(self._policy.depth(proposer.name, rank, load) for rank in ranks for proposer in self._proposers)

    def propose(self, capacity: DraftCapacity, load: SpeculationLoad) -> Proposals:
        """Draft for a step whose rows are planned, within its capacity."""
        drafts: dict[Request, tuple[int, ...]] = {}
        by: dict[Request, str] = {}
        calls: list[ProposerCall] = []
        drafting: list[Drafting] = []
        for proposer in self._proposers:
            left = capacity.without(drafts)
            wants = self._wants_of(proposer, left, load)
            if wants and not proposer.free:
                wants = self._chosen_wants(proposer, left, load, wants)
            if not wants:
                continue
            lag_tokens = sum(proposer.lag(want.request) for want in wants)
            started_ns = self._now_ns()
            proposed = proposer.propose(wants)
            elapsed_ns = self._now_ns() - started_ns
            lag_tokens -= sum(proposer.lag(want.request) for want in wants)
            if proposer.free:
                proposed = self._chosen_drafts(proposer, left, load, wants, proposed)
            for want, tokens in zip(wants, proposed, strict=True):
                if tokens:
                    drafts[want.request] = tuple(tokens)
                    by[want.request] = proposer.name
            calls.append(ProposerCall(tuple(want.request for want in wants), elapsed_ns))
            counts = [len(tokens) for tokens in proposed if tokens]
            drafting.append(
                Drafting(
                    proposer.name, len(counts), max(counts, default=0), max(lag_tokens, 0), sum(counts), elapsed_ns
                )
            )
        return Proposals(load, drafts, by, tuple(calls), tuple(drafting))

    def _wants_of(self, proposer: Proposer, capacity: DraftCapacity, load: SpeculationLoad) -> list[DraftWant]:
        """The maximum to request from a proposer: for requests without drafts, up to the useful number."""
        depths = [self._policy.depth(proposer.name, rank, load) for rank in range(len(capacity.rank_tokens))]
        if not any(depths):
            return []
        return [
            DraftWant(request, min(depths[request.rank], max_drafts))
            for request, max_drafts in capacity.useful.items()
            if depths[request.rank]
        ]

    def _chosen_wants(
        self, proposer: Proposer, capacity: DraftCapacity, load: SpeculationLoad, wants: list[DraftWant]
    ) -> list[DraftWant]:
        """The wants within the capacity that the policy chooses."""
        shares = capacity.shares([want.request for want in wants])
        candidates = [
            _candidate(want.request, min(want.depth, share), proposer.lag(want.request))
            for want, share in zip(wants, shares, strict=True)
        ]
        chosen = self._policy.choose(proposer.name, load, candidates)
        return [DraftWant(want.request, depth) for want, depth in zip(wants, chosen, strict=True) if depth]

    def _chosen_drafts(
        self,
        proposer: Proposer,
        capacity: DraftCapacity,
        load: SpeculationLoad,
        wants: list[DraftWant],
        proposed: list[Sequence[int]],
    ) -> list[Sequence[int]]:
        """The proposed drafts within the capacity that the policy chooses to verify."""
        has_some = [want.request for want, tokens in zip(wants, proposed, strict=True) if tokens]
        share_of = dict(zip(has_some, capacity.shares(has_some), strict=True))
        candidates = [
            _candidate(want.request, min(len(tokens), share_of.get(want.request, 0)), 0)
            for want, tokens in zip(wants, proposed, strict=True)
        ]
        chosen = self._policy.choose(proposer.name, load, candidates)
        return [tokens[:depth] for tokens, depth in zip(proposed, chosen, strict=True)]

    def observe(
        self, proposals: Proposals, plan: StepPlan, result: StepResult, work: StepWork, elapsed_ns: int
    ) -> None:
        """Report a completed step to the policy: its work, its time, and the accepted drafts."""
        verified = (
            tuple(
                Verified(proposals.by[row.request], row.request.rank, len(row.drafts), outcome.accepted)
                for row, outcome in zip(plan.rows, result.rows, strict=True)
                if row.drafts
            )
            if proposals.drafts
            else ()
        )
        outcome = StepOutcome(proposals.load, work, proposals.drafting, verified, elapsed_ns)
        self._policy.observe(outcome)
        self._tally.observe(outcome)

    def stats(self, classes: Sequence[str]) -> SpeculationStats:
        """The metrics of all drafts. `classes`: the names of the classes, by rank. Thread-safe."""
        return self._tally.stats(classes, self._policy.saved_ns)


def _candidate(request: Request, max_drafts: int, lag_tokens: int) -> Candidate:
    answer_tokens = len(request.tokens) - request.prompt_tokens
    return Candidate(request.rank, max_drafts, lag_tokens, answer_tokens, request.max_tokens - answer_tokens)
