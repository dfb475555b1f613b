"""Drafts for a step: whom to ask for how many, and what came of them."""

import time
from collections.abc import Callable, Mapping, Sequence
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
class Asked:
    """The requests that one proposer was asked for, and the time that it took."""

    requests: tuple[Request, ...]
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class Proposals:
    """What was proposed before a step. `by` says whose drafts a request's are."""

    load: SpeculationLoad
    drafts: Mapping[Request, tuple[int, ...]] = field(default_factory=dict)
    by: Mapping[Request, str] = field(default_factory=dict)
    asked: tuple[Asked, ...] = ()
    drafting: tuple[Drafting, ...] = ()


class Speculator:
    """Asks proposers for drafts, the first of them first; the next are asked for those that it has nothing for.

    Keeps nothing between steps but counts: what was proposed for a step goes with it, and comes back with what came of
    it.
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

    def wants(self, load: SpeculationLoad, ranks: int) -> bool:
        """Would anybody be asked at this load? O(proposers x classes)."""
        return any(self._policy.depth(each.name, rank, load) for each in self._proposers for rank in range(ranks))

    def propose(self, room: DraftCapacity, load: SpeculationLoad) -> Proposals:
        """Drafts for a step whose rows are made. There are no more of them than it has room for."""
        drafts: dict[Request, tuple[int, ...]] = {}
        by: dict[Request, str] = {}
        asked: list[Asked] = []
        drafting: list[Drafting] = []
        for proposer in self._proposers:
            left = room.without(drafts)
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
            asked.append(Asked(tuple(want.request for want in wants), elapsed_ns))
            counts = [len(tokens) for tokens in proposed if tokens]
            drafting.append(
                Drafting(
                    proposer.name, len(counts), max(counts, default=0), max(lag_tokens, 0), sum(counts), elapsed_ns
                )
            )
        return Proposals(load, drafts, by, tuple(asked), tuple(drafting))

    def _wants_of(self, proposer: Proposer, room: DraftCapacity, load: SpeculationLoad) -> list[DraftWant]:
        """The most to ask one proposer for: drafts for those that have none yet, no more than could be of use."""
        depths = [self._policy.depth(proposer.name, rank, load) for rank in range(len(room.rank_tokens))]
        if not any(depths):
            return []
        return [
            DraftWant(request, min(depths[request.rank], most))
            for request, most in room.useful.items()
            if depths[request.rank]
        ]

    def _chosen_wants(
        self, proposer: Proposer, room: DraftCapacity, load: SpeculationLoad, wants: list[DraftWant]
    ) -> list[DraftWant]:
        """Of what could be asked for, and has room, that of which the policy says that it pays."""
        shares = room.shares([want.request for want in wants])
        candidates = [
            _candidate(want.request, min(want.depth, share), proposer.lag(want.request))
            for want, share in zip(wants, shares, strict=True)
        ]
        chosen = self._policy.choose(proposer.name, load, candidates)
        return [DraftWant(want.request, depth) for want, depth in zip(wants, chosen, strict=True) if depth]

    def _chosen_drafts(
        self,
        proposer: Proposer,
        room: DraftCapacity,
        load: SpeculationLoad,
        wants: list[DraftWant],
        proposed: list[Sequence[int]],
    ) -> list[Sequence[int]]:
        """Of what was proposed, and has room, as much as the policy says that it pays to verify."""
        has_some = [want.request for want, tokens in zip(wants, proposed, strict=True) if tokens]
        share_of = dict(zip(has_some, room.shares(has_some), strict=True))
        candidates = [
            _candidate(want.request, min(len(tokens), share_of.get(want.request, 0)), 0)
            for want, tokens in zip(wants, proposed, strict=True)
        ]
        chosen = self._policy.choose(proposer.name, load, candidates)
        return [tokens[:depth] for tokens, depth in zip(proposed, chosen, strict=True)]

    def observe(
        self, proposals: Proposals, plan: StepPlan, result: StepResult, work: StepWork, elapsed_ns: int
    ) -> None:
        """Tell the policy of a step that was computed: its work and time, and what was accepted."""
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
        """What became of all drafts; `classes` are the names of the classes, by rank. Any thread may ask."""
        return self._tally.stats(classes, self._policy.saved_ns)


def _candidate(request: Request, most: int, lag_tokens: int) -> Candidate:
    answer_tokens = len(request.tokens) - request.prompt_tokens
    return Candidate(request.rank, most, lag_tokens, answer_tokens, request.max_tokens - answer_tokens)
