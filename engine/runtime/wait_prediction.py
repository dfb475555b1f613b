"""What waits of a model's requests are predicted, at any moment."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.request import Request
from engine.runtime.reservation import UNKNOWN_PROMPT, ArrivalBook, ExpectedPrompt, Reservation, fork_of
from engine.scheduling.hindsight import Hindsight
from engine.scheduling.pace import Pace
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.wait import ClassLoad, QueueSnapshot, predict_drain_ns, predict_first_token_ns

FRESH_NS = 50_000_000
"""So long a load is as good as the next, while nobody waits and as many run. Prompts that run get shorter meanwhile."""


@dataclass(frozen=True, slots=True)
class PredictedWait:
    """Nanoseconds until a new request's first token, and until all that wait now in its class have theirs."""

    first_token_ns: int
    drain_ns: int


class _View(NamedTuple):
    """What is read without a lock: replaced as a whole."""

    load: QueueSnapshot
    queue_depth: int


class WaitPredictor:
    """A model's queue as it is now: what the scheduler holds, and what was let in and is not there yet.

    Three kinds of requests are counted, and each in one of them at a time: those that are reserved (`reserve`), those
    that are submitted and lie in the engine's inbox (`on_submit`), and those in the scheduler, by a snapshot that
    `refresh` takes whenever its queues may have changed: it is after messages were obeyed, when a step that starts some
    of them is planned, and after each step. So there is nothing to be told of when requests leave.

    Steps that the load takes are each as long as the cost model says, stretched by the pace of the latest, and all of
    it corrected by how fast the class's queue has moved of late. `predicted_wait` and `queue_depth` may be asked at any
    time and on any thread; `reserve`, `on_submit` and `on_abort` called on any; the others are the engine thread's.
    """

    def __init__(self, scheduler: Scheduler, pace: Pace) -> None:
        self._scheduler = scheduler
        self._pace = pace
        self._lock = threading.Lock()
        self._taken = scheduler.snapshot()
        self._book = ArrivalBook(len(scheduler.ranks))
        self._view = self._seen()
        self._fresh_ns: int | None = None
        """When the snapshot was taken, where nobody waited then."""
        self._running = 0
        self._hindsights = [Hindsight(rank, self._first_token_ns) for rank in scheduler.ranks]

    @property
    def queue_depth(self) -> int:
        """Requests that wait, of all classes, with those that were let in and will find no slot and blocks free."""
        return self._view.queue_depth

    @property
    def reservations(self) -> int:
        """How many stand for something that has not been submitted; none where nothing is under way."""
        return self._book.reserved

    def predicted_wait(self, service_class: str, prompt_tokens: int) -> PredictedWait:
        """Of a request that came now. O(classes)."""
        load, rank = self._view.load, self._scheduler.rank_of(service_class)
        factor = self._hindsights[rank].factor
        drain_ns = self._pace.stretch * predict_drain_ns(load, rank, self._scheduler.cost_model)
        return PredictedWait(int(factor * self._first_token_ns(load, rank, prompt_tokens)), int(factor * drain_ns))

    def reserve(self, service_class: str) -> Reservation:
        """Whoever comes next waits behind this one, which is not submitted yet. To be used as a context manager."""
        reservation = Reservation(self._scheduler.rank_of(service_class), self._rebook)
        reservation.expect([UNKNOWN_PROMPT])
        return reservation

    def on_submit(self, requests: Sequence[Request], reservation: Reservation | None = None) -> None:
        """The choices of one prompt go to the inbox; what is reserved for them is theirs. One change of the queue."""
        first = requests[0]
        rank = self._scheduler.rank_of(first.service_class.name)
        prompt = ExpectedPrompt(first.prompt_tokens, 1, first.max_tokens)
        with self._lock:
            if reservation is not None:
                self._book.take(reservation, first.prompt_tokens)
            for request in requests:
                self._book.submit(request.id, rank, prompt if request is first else fork_of(prompt))
            self._view = self._seen()

    def on_abort(self, request_ids: Iterable[str]) -> None:
        """Requests are to be aborted. Those that still lie in the inbox are waited for no more."""
        with self._lock:
            for request_id in request_ids:
                self._book.drop(request_id)
            self._view = self._seen()

    def on_enqueue(self, request: Request, now_ns: int) -> None:
        """The scheduler has got a request; `refresh` follows."""

        def queue_ahead() -> QueueSnapshot:
            own = ExpectedPrompt(len(request.tokens)).arrivals
            return self._scheduler.snapshot().without_waiting(
                request.rank, requests=1, tokens=own.tokens, pairs=own.pairs
            )

        self._hindsights[request.rank].submitted(request.id, len(request.tokens), now_ns, queue_ahead)

    @contextmanager
    def displacing(self, request_ids: Sequence[str]) -> Iterator[None]:
        """Within the block these requests are aborted, paused or resumed: a queue that shortens by that is not fast.
        `refresh` follows."""
        watching = [each for each in self._hindsights if each.watches]
        if not watching:
            yield
            return
        scheduler = self._scheduler
        before, waited = scheduler.snapshot(), {each for each in request_ids if scheduler.waits(each)}
        yield
        after = scheduler.snapshot()
        displaced = waited.symmetric_difference(each for each in request_ids if scheduler.waits(each))
        if displaced:
            for hindsight in watching:
                hindsight.displaced(displaced, before, after)

    def is_fresh(self, now_ns: int) -> bool:
        """Is there no need to refresh after a step?"""
        taken_ns, scheduler = self._fresh_ns, self._scheduler
        return (
            taken_ns is not None
            and now_ns - taken_ns < FRESH_NS
            and self._running == len(scheduler.running)
            and not scheduler.waiting
        )

    def refresh(self, now_ns: int, taken_in: Iterable[str] = (), *, stepped: bool = False) -> None:
        """See what the scheduler holds now. `taken_in` were in the inbox before, whatever the scheduler said to them.
        `stepped`: a step has moved its queues."""
        taken = self._scheduler.snapshot()  # not under the lock: the event loop would wait for a thread below it
        with self._lock:
            self._taken = taken
            for request_id in taken_in:
                self._book.drop(request_id)
            self._view = self._seen()
        waits = any(load.waiting_requests for load in taken.classes)
        self._running = sum(load.running_requests for load in taken.classes)
        self._fresh_ns = None if waits else now_ns
        if stepped:
            for hindsight in self._hindsights:
                hindsight.moved(taken, now_ns)

    def on_stop(self) -> None:
        """The engine has stopped, and nobody waits for it any more."""
        with self._lock:
            self._taken = replace(self._taken, classes=tuple(ClassLoad() for _ in self._taken.classes))
            self._book.drop_all()
            self._view = self._seen()

    def check(self) -> None:
        """State what holds between any two calls, while the engine thread stands still."""
        with self._lock:
            self._book.check()
            assert self._view == self._seen(), "what is read is not what is"

    def _rebook(self, reservation: Reservation, prompts: Sequence[ExpectedPrompt]) -> None:
        with self._lock:
            self._book.rebook(reservation, prompts)
            self._view = self._seen()

    def _seen(self) -> _View:
        arrivals = self._book.by_class
        return _View(self._taken.with_arrivals(arrivals), self._taken.queue_depth(arrivals))

    def _first_token_ns(self, load: QueueSnapshot, rank: int, prompt_tokens: int) -> int:
        """Without what hindsight makes of it."""
        cost_model = self._scheduler.cost_model
        return int(self._pace.stretch * predict_first_token_ns(load, rank, prompt_tokens, cost_model))
