"""Predicts the wait of a new request from the model's current queue."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from engine.request import Request
from engine.runtime.expected_queue import ExpectedQueue, QueueSpeed
from engine.runtime.reservation import ExpectedPrompt
from engine.scheduling.cost import CostCoefficients
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.step_slowdown import StepSlowdown
from engine.scheduling.wait import QueueSnapshot, predict_first_token_ns
from engine.scheduling.wait_calibration import WaitCalibration

FRESH_NS = 50_000_000
"""Age up to which a snapshot of the load is reused, while no request waits and the number of running ones is unchanged.
Only the remaining prompts of running requests change in that time."""


class LoadReport(NamedTuple):
    """A model's load for readers in other processes. `corrections`: of each class, by rank; see `QueueSpeed`.
    `taken_in`: ids of submitted requests that the snapshot has, and the reports before it had not."""

    snapshot: QueueSnapshot
    cost: CostCoefficients
    slowdown: float
    corrections: tuple[float, ...]
    taken_in: tuple[str, ...]


class WaitPredictor(ExpectedQueue):
    """The queue of a model whose scheduler is in this process.

    `refresh` takes a snapshot whenever the queues may have changed: after messages of the inbox, when a step that
    starts requests is planned, and after each step.

    The predicted steps take the cost model's time, times the slowdown of recent steps, times a correction by how fast
    the class's queue has moved recently. The methods of `ExpectedQueue` may be called on any thread; those of this
    class belong to the engine thread.
    """

    def __init__(self, scheduler: Scheduler, pace: StepSlowdown) -> None:
        self.listeners: tuple[Callable[[LoadReport], None], ...] = ()
        """They receive a report at each `refresh`, on the engine thread."""
        super().__init__(scheduler.class_ranks, scheduler.snapshot())
        self._scheduler = scheduler
        self._pace = pace
        self._fresh_ns: int | None = None
        """Time of the snapshot, if no request waited in it."""
        self._running = 0
        self._calibrations = [WaitCalibration(rank, self._first_token_ns) for rank in scheduler.ranks]

    def speed(self, rank: int) -> QueueSpeed:
        return QueueSpeed(self._scheduler.cost_model, self._pace.factor, self._calibrations[rank].factor)

    def report(self, taken_in: Iterable[str] = ()) -> LoadReport:
        """The load as of the last snapshot."""
        corrections = tuple([calibration.factor for calibration in self._calibrations])
        cost = self._scheduler.cost_model.coefficients
        return LoadReport(self._taken, cost, self._pace.factor, corrections, tuple(taken_in))

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

    def refresh(self, now_ns: int, taken_in: Sequence[str] = (), *, stepped: bool = False) -> None:
        """Take a snapshot of the scheduler. `taken_in`: ids that were in the inbox before, accepted by the scheduler or
        not. `stepped`: a step has moved the queues."""
        taken = self._scheduler.snapshot()  # outside the lock, for which the event loop may wait
        self.update(taken, taken_in)
        waits = any(load.waiting_requests for load in taken.classes)
        self._running = sum(load.running_requests for load in taken.classes)
        self._fresh_ns = None if waits else now_ns
        if stepped:
            for calibration in self._calibrations:
                calibration.on_step(taken, now_ns)
        if self.listeners:
            report = self.report(taken_in)
            for listener in self.listeners:
                listener(report)

    def _first_token_ns(self, load: QueueSnapshot, rank: int, prompt_tokens: int) -> int:
        """The prediction before the correction by the queue's recent speed."""
        cost_model = self._scheduler.cost_model
        return int(self._pace.factor * predict_first_token_ns(load, rank, prompt_tokens, cost_model))
