"""The queue that a new request will find at a model, as the callers of an engine see it."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.request import Request
from engine.runtime.reservation import UNKNOWN_PROMPT, ArrivalBook, ExpectedPrompt, Reservation, fork_of
from engine.scheduling.wait import ClassLoad, QueueSnapshot, StepCost, predict_drain_ns, predict_first_token_ns


@dataclass(frozen=True, slots=True)
class PredictedWait:
    """Nanoseconds until a new request's first token (`first_token_ns`), and until all requests now waiting in its class
    have theirs (`drain_ns`)."""

    first_token_ns: int
    drain_ns: int


class QueueSpeed(NamedTuple):
    """How fast a model works its queue off. `slowdown`: recent steps' time over the one that `cost` predicts.
    `correction`: of one class, its measured over its predicted wait."""

    cost: StepCost
    slowdown: float
    correction: float


class _View(NamedTuple):
    """The state that readers see without a lock; replaced as a whole."""

    load: QueueSnapshot
    queue_depth: int


class ExpectedQueue(ABC):
    """A model's queue: what its scheduler holds as of a snapshot, plus requests that are let in and not in it yet.

    A request is counted in one of three places at a time: reserved (`reserve`), submitted (`on_submit`), or in the
    scheduler, as of the snapshot. Departures need no event of their own. `ranks`: rank by name of the class. All
    methods may be called on any thread. A subclass says how fast the queue moves.
    """

    def __init__(self, ranks: Mapping[str, int], snapshot: QueueSnapshot) -> None:
        self._rank_of = ranks
        self._lock = threading.Lock()
        self._taken = snapshot
        self._book = ArrivalBook(len(ranks))
        self._view = self._current_view()

    @abstractmethod
    def speed(self, rank: int) -> QueueSpeed:
        """The current speed of the queue of one class."""

    @property
    def queue_depth(self) -> int:
        """Requests of all classes that wait, including reserved and submitted ones that will find no free slot or
        blocks."""
        return self._view.queue_depth

    @property
    def requests(self) -> int:
        """Requests of all classes that wait or run, including reserved and submitted ones."""
        return sum([load.waiting_requests + load.running_requests for load in self._view.load.classes])

    @property
    def reservations(self) -> int:
        """Open reservations; 0 if no request is in progress."""
        return self._book.reserved

    def predicted_wait(self, service_class: str, prompt_tokens: int) -> PredictedWait:
        """The predicted wait of a request submitted now. O(classes)."""
        load, rank = self._view.load, self._rank_of[service_class]
        speed = self.speed(rank)
        drain_ns = speed.slowdown * predict_drain_ns(load, rank, speed.cost)
        first_token_ns = int(speed.slowdown * predict_first_token_ns(load, rank, prompt_tokens, speed.cost))
        return PredictedWait(int(speed.correction * first_token_ns), int(speed.correction * drain_ns))

    def first_token_ns(
        self, service_class: str, prompt_tokens: int, cached_tokens: int, cached_ahead: Sequence[int]
    ) -> float:
        """The predicted wait of a request of whose prompt `cached_tokens` are in the prefix cache, where requests that
        wait have `cached_ahead` there, by rank of their class. O(classes)."""
        load, rank = self._view.load.without_cached(cached_ahead), self._rank_of[service_class]
        speed = self.speed(rank)
        wait_ns = predict_first_token_ns(load, rank, prompt_tokens, speed.cost, cached_tokens)
        return speed.correction * speed.slowdown * wait_ns

    def reserve(self, service_class: str) -> Reservation:
        """Count a request that is not submitted yet: later ones wait behind it. Use as a context manager."""
        reservation = Reservation(self._rank_of[service_class], self._rebook)
        reservation.expect([UNKNOWN_PROMPT])
        return reservation

    def holds(self, reservation: Reservation) -> bool:
        """Whether a reservation is one of this queue, and neither consumed nor released."""
        return self._book.holds(reservation)

    def on_submit(self, requests: Sequence[Request], reservation: Reservation | None = None) -> None:
        """The choices of one prompt are submitted and consume their part of the reservation, in one atomic change."""
        first = requests[0]
        ids = [request.id for request in requests]
        self.expect(ids, first.service_class.name, first.prompt_tokens, first.max_tokens, reservation)

    def expect(
        self,
        request_ids: Sequence[str],
        service_class: str,
        prompt_tokens: int,
        max_tokens: int,
        reservation: Reservation | None = None,
    ) -> None:
        """As `on_submit`, of the choices of a prompt of `prompt_tokens` with answers of at most `max_tokens`."""
        rank = self._rank_of[service_class]
        prompt = ExpectedPrompt(prompt_tokens, 1, max_tokens)
        with self._lock:
            if reservation is not None:
                self._book.take(reservation, prompt_tokens)
            for index, request_id in enumerate(request_ids):
                self._book.submit(request_id, rank, fork_of(prompt) if index else prompt)
            self._view = self._current_view()

    def on_abort(self, request_ids: Iterable[str]) -> None:
        """Requests are to be aborted: those not yet in the scheduler no longer count."""
        with self._lock:
            for request_id in request_ids:
                self._book.drop(request_id)
            self._view = self._current_view()

    def update(self, snapshot: QueueSnapshot, taken_in: Iterable[str]) -> None:
        """The scheduler's current load. `taken_in`: ids of submitted requests that it has accepted or refused."""
        with self._lock:
            self._taken = snapshot
            for request_id in taken_in:
                self._book.drop(request_id)
            self._view = self._current_view()

    def on_stop(self) -> None:
        """The engine has stopped; the queue is empty."""
        with self._lock:
            self._taken = replace(self._taken, classes=tuple(ClassLoad() for _ in self._taken.classes))
            self._book.drop_all()
            self._view = self._current_view()

    def check(self) -> None:
        """Assert the invariants. The engine thread must be idle."""
        with self._lock:
            self._book.check()
            assert self._view == self._current_view(), "the published view is outdated"

    def _rebook(self, reservation: Reservation, prompts: Sequence[ExpectedPrompt]) -> None:
        with self._lock:
            self._book.rebook(reservation, prompts)
            self._view = self._current_view()

    def _current_view(self) -> _View:
        arrivals = self._book.by_class
        return _View(self._taken.with_arrivals(arrivals), self._taken.queue_depth(arrivals))
