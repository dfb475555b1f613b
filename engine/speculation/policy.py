"""How many drafts to ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.scheduling.cost import StepWork


class SpeculationLoad(NamedTuple):
    """What a model has before a step: requests that run and wait, and the tokens that those that run read."""

    running: int
    waiting: int
    context_tokens: int


class Candidate(NamedTuple):
    """A request that could have at most `most` drafts of a proposer. `lag_tokens` is what that would have to compute
    before; `answer_tokens` the answer has so far, and may go on for `left_tokens`."""

    rank: int
    most: int
    lag_tokens: int
    answer_tokens: int
    left_tokens: int


class Drafting(NamedTuple):
    """What one proposer did before a step, and the time that it took: for how many requests it had drafts, `depth` at
    most of one, `proposed` of all. `lag_tokens` is what it caught up with, for these and for others."""

    proposer: str
    requests: int
    depth: int
    lag_tokens: int
    proposed: int
    elapsed_ns: int


class Verified(NamedTuple):
    """What came of one request's drafts: so many were in its row, so many, from the first, were what the model drew."""

    proposer: str
    rank: int
    drafts: int
    accepted: int


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """A step that was computed, with drafts or without. `elapsed_ns` is its own time, without that of the drafting, but
    with that for which the device stood still before, as what was drafted for had to land first.

    `work` counts drafts as tokens. `drafting` may have proposers of whose drafts none came into the step.
    """

    load: SpeculationLoad
    work: StepWork
    drafting: tuple[Drafting, ...]
    verified: tuple[Verified, ...]
    elapsed_ns: int

    @property
    def prefill_tokens(self) -> int:
        """Tokens beyond one a row that are no drafts."""
        return self.work.tokens - self.work.rows - sum(each.drafts for each in self.verified)

    @property
    def drafting_ns(self) -> int:
        return sum(each.elapsed_ns for each in self.drafting)


class DepthPolicy(Protocol):
    """Says how deep to draft, and learns from every step. Used on the engine thread alone."""

    def depth(self, proposer: str, rank: int, load: SpeculationLoad) -> int:
        """The most drafts that a request of a class may get of a proposer; 0: there is no need to ask for any.

        It is a question and changes nothing: until the next `observe` the answer to the same question is the same.
        """
        ...

    def choose(self, proposer: str, load: SpeculationLoad, candidates: Sequence[Candidate]) -> list[int]:
        """How many drafts each of them gets, `most` or fewer. Once a step for each proposer, in their order."""
        ...

    def observe(self, outcome: StepOutcome) -> None:
        """Called after each step that was computed."""
        ...

    @property
    def saved_ns(self) -> int:
        """How much less time all tokens so far have taken than without drafts, by its estimate; 0 where it has none.
        Any thread may ask."""
        ...


class FixedDepth:
    """Always as deep."""

    def __init__(self, depth: int) -> None:
        self._depth = depth

    def depth(self, proposer: str, rank: int, load: SpeculationLoad) -> int:
        return self._depth

    def choose(self, proposer: str, load: SpeculationLoad, candidates: Sequence[Candidate]) -> list[int]:
        return [each.most for each in candidates]

    def observe(self, outcome: StepOutcome) -> None:
        pass

    @property
    def saved_ns(self) -> int:
        return 0
