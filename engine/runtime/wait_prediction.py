"""Predicts the wait of a new request from the model's current queue."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.request import Request
from engine.runtime.reservation import UNKNOWN_PROMPT, ArrivalBook, ExpectedPrompt, Reservation, fork_of
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_slowdown import StepSlowdown
from engine.scheduling.wait import ClassLoad, QueueSnapshot, predict_drain_ns, predict_first_token_ns
from engine.scheduling.wait_calibration import WaitCalibration

FRESH_NS = 50_000_000
"""Age up to which a snapshot of the load is reused, while no request waits and the number of running ones is unchanged.
Only the remaining prompts of running requests change in that time."""


@dataclass(frozen=True, slots=True)
class PredictedWait:
    """Nanoseconds until a new request's first token (`first_token_ns`), and until all requests now waiting in its class
    have theirs (`drain_ns`)."""

    first_token_ns: int
    drain_ns: int


class _View(NamedTuple):
    """The state that readers see without a lock; replaced as a whole."""

    load: QueueSnapshot
    queue_depth: int


class WaitPredictor:
    """The current queue of a model: what the scheduler holds, plus requests that are let in and not in it yet.

    A request is counted in one of three places at a time: reserved (`reserve`), in the engine's inbox (`on_submit`), or
    in the scheduler, as of a snapshot. `refresh` takes the snapshot whenever the queues may have changed: after
    messages of the inbox, when a step that starts requests is planned, and after each step. Departures need no event of
    their own.

    The predicted steps take the cost model's time, times the slowdown of recent steps, times a correction by how fast
    the class's queue has moved recently. `predicted_wait`, `queue_depth`, `reserve`, `on_submit` and `on_abort` may be
    called on any thread; the other methods belong to the engine thread.
    """

    def __init__(self, scheduler: Scheduler, pace: StepSlowdown) -> None:
        self._scheduler = scheduler
        self._pace = pace
        self._lock = threading.Lock()
        self._taken = scheduler.snapshot()
        self._book = ArrivalBook(len(scheduler.ranks))
        self._view = self._current_view()
        self._fresh_ns: int | None = None
        """Time of the snapshot, if no request waited in it."""
        self._running = 0
        self._calibrations = [WaitCalibration(rank, self._first_token_ns) for rank in scheduler.ranks]

    @property
    def queue_depth(self) -> int:
        """Requests of all classes that wait, including reserved and submitted ones that will find no free slot or
        blocks."""
        return self._view.queue_depth

    @property
    def reservations(self) -> int:
        """Open reservations; 0 if no request is in progress."""
        return self._book.reserved

    def predicted_wait(self, service_class: str, prompt_tokens: int) -> PredictedWait:
        """The predicted wait of a request submitted now. O(classes)."""
        load, rank = self._view.load, self._scheduler.rank_of(service_class)
        factor = self._calibrations[rank].factor
        drain_ns = self._pace.factor * predict_drain_ns(load, rank, self._scheduler.cost_model)
        return PredictedWait(int(factor * self._first_token_ns(load, rank, prompt_tokens)), int(factor * drain_ns))

    def reserve(self, service_class: str) -> Reservation:
        """Count a request that is not submitted yet: later ones wait behind it. Use as a context manager."""
        reservation = Reservation(self._scheduler.rank_of(service_class), self._rebook)
        reservation.expect([UNKNOWN_PROMPT])
        return reservation

    def on_submit(self, requests: Sequence[Request], reservation: Reservation | None = None) -> None:
        """The choices of one prompt enter the inbox and consume their part of the reservation, in one atomic change."""
        first = requests[0]
        rank = self._scheduler.rank_of(first.service_class.name)
        prompt = ExpectedPrompt(first.prompt_tokens, 1, first.max_tokens)
        with self._lock:
            if reservation is not None:
                self._book.take(reservation, first.prompt_tokens)
            for request in requests:
                self._book.submit(request.id, rank, prompt if request is first else fork_of(prompt))
            self._view = self._current_view()

    def on_abort(self, request_ids: Iterable[str]) -> None:
        """Requests are to be aborted: those still in the inbox no longer count."""
        with self._lock:
            for request_id in request_ids:
                self._book.drop(request_id)
            self._view = self._current_view()

    def on_enqueue(self, request: Request, now_ns: int) -> None:
        """The scheduler has received a request. `refresh` follows."""

        def queue_ahead() -> QueueSnapshot:
            own = ExpectedPrompt(len(request.tokens)).arrivals
            return self._scheduler.snapshot().without_waiting(
                request.rank, requests=1, tokens=own.tokens, pairs=own.pairs
            )

        self._calibrations[request.rank].on_submit(request.id, len(request.tokens), now_ns, queue_ahead)

    @contextmanager
    def displacing(self, request_ids: Sequence[str]) -> Iterator[None]:
        """Requests are aborted, paused or resumed within the block. The resulting change of the queue is not counted as
        progress. `refresh` follows."""
        watching = [calibration for calibration in self._calibrations if calibration.has_probe]
        if not watching:
            yield
            return
        scheduler = self._scheduler
        before, waited = scheduler.snapshot(), {id_ for id_ in request_ids if scheduler.waits(id_)}
        yield
        after = scheduler.snapshot()
        displaced = waited.symmetric_difference(id_ for id_ in request_ids if scheduler.waits(id_))
        if displaced:
            for calibration in watching:
                calibration.on_displaced(displaced, before, after)

    def is_fresh(self, now_ns: int) -> bool:
        """Whether a refresh after a step can be skipped."""
        taken_ns, scheduler = self._fresh_ns, self._scheduler
        return (
            taken_ns is not None
            and now_ns - taken_ns < FRESH_NS
            and self._running == len(scheduler.running)
            and not scheduler.waiting
        )

    def refresh(self, now_ns: int, taken_in: Iterable[str] = (), *, stepped: bool = False) -> None:
        """Take a snapshot of the scheduler. `taken_in`: ids that were in the inbox before, accepted by the scheduler or
        not. `stepped`: a step has moved the queues."""
        taken = self._scheduler.snapshot()  # outside the lock, for which the event loop may wait
        with self._lock:
            self._taken = taken
            for request_id in taken_in:
                self._book.drop(request_id)
            self._view = self._current_view()
        waits = any(load.waiting_requests for load in taken.classes)
        self._running = sum(load.running_requests for load in taken.classes)
        self._fresh_ns = None if waits else now_ns
        if stepped:
            for calibration in self._calibrations:
                calibration.on_step(taken, now_ns)

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

    def _first_token_ns(self, load: QueueSnapshot, rank: int, prompt_tokens: int) -> int:
        """The prediction before the correction by the queue's recent speed."""
        cost_model = self._scheduler.cost_model
        return int(self._pace.factor * predict_first_token_ns(load, rank, prompt_tokens, cost_model))
