"""Requests that were let in and are not in the scheduler yet: reserved by whoever let them in, or submitted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from engine.scheduling.cost import row_work
from engine.scheduling.wait import Arrivals


@dataclass(frozen=True, slots=True)
class ExpectedPrompt:
    """A prompt that will be submitted with `choices` answers of `max_tokens` at most each, 0 while that is unknown."""

    prompt_tokens: int = 1
    choices: int = 1
    max_tokens: int = 0

    @property
    def arrivals(self) -> Arrivals:
        """The choices share the prompt: all but the first compute its last token alone."""
        forks = self.choices - 1
        return Arrivals(
            requests=self.choices,
            tokens=self.prompt_tokens + forks,
            pairs=_pairs(self.prompt_tokens) + forks * _pairs(1),
            max_tokens=self.choices * self.max_tokens,
        )


UNKNOWN_PROMPT = ExpectedPrompt()
"""A prompt that has not been tokenised."""


class Reservation:
    """A request's place in a model's predicted queue, from the decision to let it in until it is submitted.

    A context manager: what has not been submitted by its end is released. `expect` and `release` may be called at any
    time, from any thread; each is one change of the queue.
    """

    __slots__ = ("_rebook", "rank")

    def __init__(self, rank: int, rebook: "Callable[[Reservation, Sequence[ExpectedPrompt]], None]") -> None:
        self.rank = rank
        self._rebook = rebook

    def expect(self, prompts: Sequence[ExpectedPrompt]) -> None:
        """Stand for these prompts in place of those before."""
        self._rebook(self, prompts)

    def release(self) -> None:
        """Give the place up. Idempotent."""
        self._rebook(self, ())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class ArrivalBook:
    """What is reserved of one model and what is submitted and not in the scheduler yet, with its sums by class.

    Each entry is removed with the values that it was added with, so an empty book has sums of zero. Callers take turns.
    """

    def __init__(self, classes: int) -> None:
        self._sums = [Arrivals()] * classes
        self._submitted: dict[str, tuple[int, Arrivals]] = {}
        self._reserved: dict[Reservation, list[ExpectedPrompt]] = {}

    @property
    def by_class(self) -> Sequence[Arrivals]:
        return self._sums

    @property
    def reserved(self) -> int:
        """How many reservations stand for something that has not been submitted."""
        return len(self._reserved)

    def submit(self, request_id: str, rank: int, prompt: ExpectedPrompt) -> None:
        """A request was submitted. `drop` removes it."""
        arrivals = prompt.arrivals
        self._submitted[request_id] = rank, arrivals
        self._sums[rank] = self._sums[rank].plus(arrivals)

    def drop(self, request_id: str) -> None:
        """It is in the scheduler, or has left before. One that is not here is no error."""
        entry = self._submitted.pop(request_id, None)
        if entry is not None:
            rank, arrivals = entry
            self._sums[rank] = self._sums[rank].minus(arrivals)

    def drop_all(self) -> None:
        """Of those that were submitted."""
        for request_id in list(self._submitted):
            self.drop(request_id)

    def rebook(self, reservation: Reservation, prompts: Sequence[ExpectedPrompt]) -> None:
        """The reservation stands for these prompts from now on."""
        for prompt in self._reserved.pop(reservation, ()):
            self._sums[reservation.rank] = self._sums[reservation.rank].minus(prompt.arrivals)
        if prompts:
            self._reserved[reservation] = list(prompts)
        for prompt in prompts:
            self._sums[reservation.rank] = self._sums[reservation.rank].plus(prompt.arrivals)

    def take(self, reservation: Reservation, prompt_tokens: int) -> None:
        """One of the reservation's prompts is submitted: the one of this length, if there is one."""
        prompts = self._reserved.get(reservation)
        if not prompts:
            return
        index = next((i for i, prompt in enumerate(prompts) if prompt.prompt_tokens == prompt_tokens), 0)
        self._sums[reservation.rank] = self._sums[reservation.rank].minus(prompts.pop(index).arrivals)
        if not prompts:
            del self._reserved[reservation]

    def check(self) -> None:
        """The sums are those of the entries."""
        sums = [Arrivals()] * len(self._sums)
        for rank, arrivals in self._submitted.values():
            sums[rank] = sums[rank].plus(arrivals)
        for reservation, prompts in self._reserved.items():
            assert prompts, "a reservation of nothing is kept"
            for prompt in prompts:
                sums[reservation.rank] = sums[reservation.rank].plus(prompt.arrivals)
        assert sums == self._sums, "what is on its way is miscounted"


def fork_of(prompt: ExpectedPrompt) -> ExpectedPrompt:
    """What a choice after the first has to compute of it."""
    return replace(prompt, prompt_tokens=1)


def _pairs(tokens: int) -> int:
    return row_work(0, tokens).prefill_pairs
