"""The policy interface: how many drafts to request, and what it learns from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.scheduling.cost import StepWork


class SpeculationLoad(NamedTuple):
    """A model's load before a step: running and waiting requests, and the context tokens that the running ones read."""

    running: int
    waiting: int
    context_tokens: int


class Candidate(NamedTuple):
    """A request that can have at most `max_drafts` drafts of a proposer.

    `lag_tokens`: tokens that the proposer has to compute first. `answer_tokens`: tokens of the answer so far.
    `left_tokens`: the maximum tokens still to come.
    """

    rank: int
    max_drafts: int
    lag_tokens: int
    answer_tokens: int
    left_tokens: int


class Drafting(NamedTuple):
    """The work of one proposer before a step.

    `requests`: requests with drafts; `depth`: the maximum drafts of one request; `proposed`: all drafts.
    `lag_tokens`: tokens that it caught up with, for these and other requests.
    """

    proposer: str
    requests: int
    depth: int
    lag_tokens: int
    proposed: int
    elapsed_ns: int


class Verified(NamedTuple):
    """The result of one request's drafts. `drafts`: tokens proposed in the row; `accepted`: length of the accepted
    prefix."""

    proposer: str
    rank: int
    drafts: int
    accepted: int


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A completed step, with or without drafts.

    `elapsed_ns`: its time without drafting, but including the idle time of the device before it, when drafting had to
    wait for the previous step. `work`: counts drafts as tokens. `drafting`: includes proposers whose drafts are not in
    the step.
    """

    load: SpeculationLoad
    work: StepWork
    drafting: tuple[Drafting, ...]
    verified: tuple[Verified, ...]
    elapsed_ns: int

    @property
    def prefill_tokens(self) -> int:
        """Tokens beyond one per row that are not drafts."""
        return self.work.tokens - self.work.rows - sum(verified.drafts for verified in self.verified)

    @property
    def drafting_ns(self) -> int:
        """The time of all drafting for the step."""
        return sum(drafting.elapsed_ns for drafting in self.drafting)


class DepthPolicy(Protocol):
    """Chooses draft depths and learns from every step. Used on the engine thread only."""

    def depth(self, proposer: str, rank: int, load: SpeculationLoad) -> int:
        """The maximum drafts of a request of a class from a proposer; 0: the proposer need not be called.

        It changes no state: equal calls have equal results until the next `observe`.
        """
        ...

    def choose(self, proposer: str, load: SpeculationLoad, candidates: Sequence[Candidate]) -> list[int]:
        """The number of drafts of each candidate, at most `max_drafts`. Called once per step and proposer, in order."""
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Learn from a completed step."""
        ...

    @property
    def saved_ns(self) -> int:
        """The estimated time that drafts have saved over all tokens so far; 0 without an estimate. Thread-safe."""
        ...


class FixedDepth:
    """The same depth for every request and step."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def depth(self, proposer: str, rank: int, load: SpeculationLoad) -> int:
        return self._depth

    def choose(self, proposer: str, load: SpeculationLoad, candidates: Sequence[Candidate]) -> list[int]:
        return [candidate.max_drafts for candidate in candidates]

    def observe(self, outcome: StepOutcome) -> None:
        pass

    @property
    def saved_ns(self) -> int:
        return 0
