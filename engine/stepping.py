"""Steps one model: plans, launches, waits, takes in what came; with a step in flight beyond that where there can be."""

import logging
import time
from collections import deque
from dataclasses import dataclass

from engine.request import DeviceLost, OutOfDeviceMemory, TokenDelta
from engine.scheduling.cost import step_work
from engine.scheduling.pace import Pace
from engine.scheduling.plan import Executor, PendingStep, StepPlan, StepResult
from engine.scheduling.scheduler import Scheduler
from engine.watchdog import StepHung, Watchdog

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DeviceClock:
    """When the latest step of any model ended. They run one after another on a device: one that was launched while
    another ran has begun when that ended, so that the times of all of them never overlap."""

    last_end_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Launched:
    plan: StepPlan
    pending: PendingStep
    launched_ns: int


@dataclass(frozen=True, slots=True)
class _NeverLaunched:
    """A `PendingStep` that did not come that far. It fails in its turn, behind those launched before it."""

    error: Exception

    def result(self) -> StepResult:
        raise self.error


class ModelSteps:
    """One model's steps, in turns that a caller takes. Used on the engine thread alone.

    The watchdog watches the executor: nothing else here takes long.
    `pace` says how fast they follow one another, for predicted waits.
    """

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: DeviceClock, watchdog: Watchdog) -> None:
        scheduler.ahead = executor.ahead
        self.pace = Pace()
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._watchdog = watchdog
        self._in_flight: deque[_Launched] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight) or self._scheduler.has_work

    def turn(self) -> list[TokenDelta]:
        """Launch the next step; wait for the oldest in flight, unless there is room for one more; what it brought.

        Behind a step that could not be launched nothing else is, before it has failed.

        Raises:
            StepHung: the executor took so long that it was given up.
            DeviceLost: no step will be computed any more.
        """
        launched = self._launch()
        if launched is None:
            return self._land() if self._in_flight else []
        if isinstance(launched.pending, _NeverLaunched):
            return [delta for _ in range(len(self._in_flight)) for delta in self._land()]
        return self._land() if len(self._in_flight) > self._scheduler.ahead else []

    def _launch(self) -> _Launched | None:
        now_ns = time.monotonic_ns()
        plan = self._scheduler.schedule(now_ns, guard=self._scheduler.step_guard(now_ns))
        if plan is None:
            return None
        launched_ns = time.monotonic_ns()
        pending: PendingStep
        try:
            with self._watchdog:
                pending = self._executor.execute(plan)
        except (StepHung, DeviceLost):
            raise
        except Exception as error:
            pending = _NeverLaunched(error)
        launched = _Launched(plan, pending, launched_ns)
        self._in_flight.append(launched)
        return launched

    def _land(self) -> list[TokenDelta]:
        """Wait for the oldest step in flight and take in what came of it."""
        step = self._in_flight.popleft()
        try:
            with self._watchdog:
                result = step.pending.result()
        except (StepHung, DeviceLost):
            raise
        except OutOfDeviceMemory as error:
            logger.warning("there was no room for a step of %d tokens: %s", step.plan.total_tokens, error)
            deltas = self._scheduler.give_back(
                step.plan, "there was no room on the device for this request", elapsed_ns=self._elapsed_ns(step)
            )
        except Exception:
            logger.exception("a step of %d rows failed", len(step.plan.rows))
            deltas = self._scheduler.fail(
                step.plan, "the engine could not compute this step", elapsed_ns=self._elapsed_ns(step)
            )
        else:
            deltas = self._scheduler.commit(step.plan, result, elapsed_ns=self._elapsed_ns(step))
        self._note_pace(step)
        return deltas

    def _elapsed_ns(self, step: _Launched) -> int:
        """How long the device was at it. Asked once, when it has ended."""
        begun_ns = max(step.launched_ns, self._clock.last_end_ns)
        self._clock.last_end_ns = time.monotonic_ns()
        return self._clock.last_end_ns - begun_ns

    def _note_pace(self, step: _Launched) -> None:
        """After the cost model has learnt from the step: before its first, it knows nothing of this machine."""
        work = step_work([row.start for row in step.plan.rows], [row.tokens for row in step.plan.rows])
        predicted_ns = self._scheduler.cost_model.predict_ns(work)
        self.pace.observe(predicted_ns, step.launched_ns, time.monotonic_ns(), more=self.has_work)
