"""Steps one model: plans, launches, waits, takes in what came; with a step in flight beyond that where there can be."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.errors import DeviceLost, OutOfDeviceMemory
from engine.request import TokenDelta
from engine.runtime.watchdog import StepHung, Watchdog
from engine.scheduling.cost import StepWork, step_work
from engine.scheduling.drafting import DraftRoom, Drafts
from engine.scheduling.pace import Pace
from engine.scheduling.plan import Executor, PendingStep, StepPlan, StepResult
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.stats import SchedulerStats
from engine.speculation.policy import SpeculationLoad
from engine.speculation.speculator import Proposals, Speculator

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DeviceClock:
    """When the latest step of any model ended. They run one after another on a device: one that was launched while
    another ran has begun when that ended, so that the times of all of them never overlap."""

    last_end_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step in flight. `device_idle_ns` is how long a device that could have had it earlier had nothing to do."""

    plan: StepPlan
    pending: PendingStep
    launched_ns: int
    proposals: Proposals | None
    device_idle_ns: int


@dataclass(frozen=True, slots=True)
class _FailedLaunch:
    """A `PendingStep` that did not come that far. It fails in its turn, behind those launched before it."""

    error: Exception

    def result(self) -> StepResult:
        raise self.error


class StepLoop:
    """One model's steps, in turns that a caller takes. Used on the engine thread alone.

    The watchdog watches the executor and the drafting: nothing else here takes long.
    `pace` says how fast they follow one another, for predicted waits.

    Drafts follow a request's last token, so nothing may be in flight of those that they are for: while the speculator
    wants to draft, a step is launched when the one before it has landed, and not earlier.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: DeviceClock,
        watchdog: Watchdog,
        speculator: Speculator | None = None,
        *,
        before_launch: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_launch` is called when a step is about to be launched, outside of the watchdog."""
        scheduler.async_depth = executor.async_depth
        self.pace = Pace()
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._watchdog = watchdog
        self._speculator = speculator if executor.takes_drafts else None
        self._before_launch = before_launch
        self._in_flight: deque[_Launched] = deque()
        self._has_more = False
        """There was more to do when the last step had landed."""

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight) or self._scheduler.has_work

    def step(self) -> list[TokenDelta]:
        """Launch the next step; wait for the oldest in flight, unless there is room for one more; what it brought.

        Behind a step that could not be launched nothing else is, before it has failed.

        Raises:
            StepHung: the executor took so long that it was given up.
            DeviceLost: no step will be computed any more.
        """
        if self._in_flight and self._speculator is not None and self._speculator.wants(self._load(), self._ranks):
            return self._complete()
        launched = self._launch()
        if launched is None:
            return self._complete() if self._in_flight else []
        if isinstance(launched.pending, _FailedLaunch):
            return [delta for _ in range(len(self._in_flight)) for delta in self._complete()]
        return self._complete() if len(self._in_flight) > self._scheduler.async_depth else []

    def _launch(self) -> _Launched | None:
        plan, proposals = self._plan()
        if plan is None:
            return None
        self._before_launch()
        launched_ns = time.monotonic_ns()
        device_idle_ns = self._device_idle_ns(launched_ns, proposals)
        pending: PendingStep
        try:
            with self._watchdog:
                pending = self._executor.execute(plan)
        except (StepHung, DeviceLost):
            raise
        except Exception as error:
            pending = _FailedLaunch(error)
        launched = _Launched(plan, pending, launched_ns, proposals, device_idle_ns)
        self._in_flight.append(launched)
        return launched

    def _plan(self) -> tuple[StepPlan | None, Proposals | None]:
        """The next step, and what was proposed for it; None in place of that where nobody drafts."""
        now_ns = time.monotonic_ns()
        guard = self._scheduler.step_guard(now_ns)
        speculator = self._speculator
        if speculator is None:
            return self._scheduler.schedule(now_ns, guard=guard), None
        load = self._load()
        proposals: Proposals | None = Proposals(load)
        if self._in_flight or not speculator.wants(load, self._ranks):
            return self._scheduler.schedule(now_ns, guard=guard), proposals

        def draft(room: DraftRoom) -> Drafts:
            nonlocal proposals
            proposals = self._propose(speculator, room, load)
            return {} if proposals is None else proposals.drafts

        plan = self._scheduler.schedule(now_ns, guard=guard, draft=draft)
        return plan, proposals

    def stats(self, now_ns: int) -> SchedulerStats:
        """The scheduler's, with what became of drafts. Any thread may ask."""
        stats, speculator = self._scheduler.stats(now_ns), self._speculator
        if speculator is None:
            return stats
        return replace(stats, speculation=speculator.stats(self._scheduler.class_names))

    def _propose(self, speculator: Speculator, room: DraftRoom, load: SpeculationLoad) -> Proposals | None:
        """Drafts for the step that is being planned, their time charged. Without them it is as good a step: where
        drafting fails, it is over."""
        try:
            with self._watchdog:
                proposals = speculator.propose(room, load)
        except (StepHung, DeviceLost):
            raise
        except OutOfDeviceMemory as error:
            logger.warning("there was no room to draft: %s", error)
            return Proposals(load)
        except Exception:
            logger.exception("drafting failed; the model goes on without")
            self._speculator = None
            return None
        for asked in proposals.asked:
            self._scheduler.charge_drafting(asked.requests, asked.elapsed_ns)
        return proposals

    def _device_idle_ns(self, launched_ns: int, proposals: Proposals | None) -> int:
        """What a step costs beyond its own time where the device is not ahead, though it could be. Without drafts it
        would not wait for the host, so this is for whoever weighs drafts against none."""
        if proposals is None or not self._scheduler.async_depth or self._in_flight or not self._has_more:
            return 0
        drafting_ns = sum(each.elapsed_ns for each in proposals.asked)
        return max(0, launched_ns - self._clock.last_end_ns - drafting_ns)

    def _load(self) -> SpeculationLoad:
        scheduler = self._scheduler
        return SpeculationLoad(len(scheduler.running), scheduler.waiting, scheduler.context_tokens)

    @property
    def _ranks(self) -> int:
        return len(self._scheduler.ranks)

    def _complete(self) -> list[TokenDelta]:
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
            elapsed_ns = self._elapsed_ns(step)
            deltas = self._scheduler.commit(step.plan, result, elapsed_ns=elapsed_ns)
            if self._speculator is not None and step.proposals is not None:
                taken_ns = elapsed_ns + step.device_idle_ns
                self._speculator.observe(step.proposals, step.plan, result, _work_of(step.plan), taken_ns)
        self._record_pace(step)
        self._has_more = self.has_work
        return deltas

    def _elapsed_ns(self, step: _Launched) -> int:
        """How long the device was at it. Asked once, when it has ended."""
        begun_ns = max(step.launched_ns, self._clock.last_end_ns)
        self._clock.last_end_ns = time.monotonic_ns()
        return self._clock.last_end_ns - begun_ns

    def _record_pace(self, step: _Launched) -> None:
        """After the cost model has learnt from the step: before its first, it knows nothing of this machine."""
        predicted_ns = self._scheduler.cost_model.predict_ns(_work_of(step.plan))
        self.pace.observe(predicted_ns, step.launched_ns, time.monotonic_ns(), more=self.has_work)


def _work_of(plan: StepPlan) -> StepWork:
    return step_work([row.start for row in plan.rows], [row.tokens for row in plan.rows])
