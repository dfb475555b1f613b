"""Requests that are let in and not yet in the scheduler: reserved, or submitted to the inbox."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from engine.scheduling.cost import row_work
from engine.scheduling.wait import Arrivals


@dataclass(frozen=True, slots=True)
class ExpectedPrompt:
    """A prompt that will be submitted with `choices` answers of at most `max_tokens` tokens each (0: not known yet)."""

    prompt_tokens: int = 1
    choices: int = 1
    max_tokens: int = 0

    @property
    def arrivals(self) -> Arrivals:
        """The work of this prompt. The choices share it: all but the first compute its last token alone."""
        forks = self.choices - 1
        return Arrivals(
            requests=self.choices,
            tokens=self.prompt_tokens + forks,
            pairs=_pairs(self.prompt_tokens) + forks * _pairs(1),
            max_tokens=self.choices * self.max_tokens,
        )


UNKNOWN_PROMPT = ExpectedPrompt()
"""A prompt that is not tokenised yet."""


class Reservation:
    """A request's place in a model's predicted queue, from the decision to let it in until it is submitted.

    A context manager: what has not been submitted on exit is released. `expect` and `release` may be called at any time
    from any thread; each changes the queue atomically.
    """

    __slots__ = ("_rebook", "rank")

    def __init__(self, rank: int, rebook: "Callable[[Reservation, Sequence[ExpectedPrompt]], None]") -> None:
        self.rank = rank
        self._rebook = rebook

    def expect(self, prompts: Sequence[ExpectedPrompt]) -> None:
        """Replace the prompts that the reservation stands for."""
        self._rebook(self, prompts)

    def release(self) -> None:
        """Give up the place. Idempotent."""
        self._rebook(self, ())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class ArrivalBook:
    """Reserved requests of one model, and submitted ones not yet in the scheduler, with their sums by class.

    An entry is removed with the values it was added with, so an empty book has sums of zero. Callers synchronise.
    """

    def __init__(self, classes: int) -> None:
        self._sums = [Arrivals()] * classes
        self._submitted: dict[str, tuple[int, Arrivals]] = {}
        self._reserved: dict[Reservation, list[ExpectedPrompt]] = {}

    @property
    def by_class(self) -> Sequence[Arrivals]:
        """The sums by rank of the class."""
        return self._sums

    @property
    def reserved(self) -> int:
        """Number of open reservations."""
        return len(self._reserved)

    def holds(self, reservation: Reservation) -> bool:
        """Whether a reservation is open."""
        return reservation in self._reserved

    def submit(self, request_id: str, rank: int, prompt: ExpectedPrompt) -> None:
        """Add a submitted request; `drop` removes it."""
        arrivals = prompt.arrivals
        self._submitted[request_id] = rank, arrivals
        self._sums[rank] = self._sums[rank].plus(arrivals)

    def drop(self, request_id: str) -> None:
        """Remove a submitted request that has reached the scheduler or was aborted. Unknown ids are ignored."""
        entry = self._submitted.pop(request_id, None)
        if entry is not None:
            rank, arrivals = entry
            self._sums[rank] = self._sums[rank].minus(arrivals)

    def drop_all(self) -> None:
        """Remove all submitted requests."""
        for request_id in list(self._submitted):
            self.drop(request_id)

    def rebook(self, reservation: Reservation, prompts: Sequence[ExpectedPrompt]) -> None:
        """Replace the prompts of a reservation."""
        for prompt in self._reserved.pop(reservation, ()):
            self._sums[reservation.rank] = self._sums[reservation.rank].minus(prompt.arrivals)
        if prompts:
            self._reserved[reservation] = list(prompts)
        for prompt in prompts:
            self._sums[reservation.rank] = self._sums[reservation.rank].plus(prompt.arrivals)

    def take(self, reservation: Reservation, prompt_tokens: int) -> None:
        """Remove the prompt that is being submitted from its reservation: the one of this length, or else the first."""
        prompts = self._reserved.get(reservation)
        if not prompts:
            return
        index = next((i for i, prompt in enumerate(prompts) if prompt.prompt_tokens == prompt_tokens), 0)
        self._sums[reservation.rank] = self._sums[reservation.rank].minus(prompts.pop(index).arrivals)
        if not prompts:
            del self._reserved[reservation]

    def check(self) -> None:
        """Assert that the sums are those of the entries."""
        sums = [Arrivals()] * len(self._sums)
        for rank, arrivals in self._submitted.values():
            sums[rank] = sums[rank].plus(arrivals)
        for reservation, prompts in self._reserved.items():
            assert prompts, "an empty reservation is kept"
            for prompt in prompts:
                sums[reservation.rank] = sums[reservation.rank].plus(prompt.arrivals)
        assert sums == self._sums, "the sums differ from the entries"


def fork_of(prompt: ExpectedPrompt) -> ExpectedPrompt:
    """The prompt as a choice after the first computes it: one token."""
    return replace(prompt, prompt_tokens=1)


def _pairs(tokens: int) -> int:
    return row_work(0, tokens).prefill_pairs
