"""Steps one model: plans, launches, awaits and commits steps, with `async_depth` of them in flight beyond the awaited
one."""

import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from engine.errors import DeviceLost, OutOfDeviceMemory
from engine.request import TokenDelta
from engine.runtime.watchdog import StepHung, Watchdog
from engine.scheduling.cost import StepWork, step_work
from engine.scheduling.drafting import DraftCapacity, Drafts, can_have_drafts_next
from engine.scheduling.plan import Executor, PendingStep, StepPlan, StepResult
from engine.scheduling.scheduler import Scheduler
from engine.scheduling.stats import SchedulerStats
from engine.scheduling.step_slowdown import StepSlowdown
from engine.scheduling.stopping import decodes
from engine.speculation.policy import SpeculationLoad
from engine.speculation.speculator import Proposals, Speculator

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DeviceClock:
    """End of the latest step of any model on a device. Steps run one after another, so a step launched during another
    one begins when that ends; step times never overlap."""

    last_end_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step in flight. `device_idle_ns`: time before it in which the device had no work though it could have had this
    step."""

    plan: StepPlan
    pending: PendingStep
    launched_ns: int
    proposals: Proposals | None
    device_idle_ns: int


@dataclass(frozen=True, slots=True)
class _FailedLaunch:
    """A `PendingStep` whose launch failed. It fails in its turn, after the steps launched before it."""

    error: Exception

    def result(self) -> StepResult:
        raise self.error


class StepLoop:
    """The steps of one model; the caller calls `step` repeatedly. Used on the engine thread alone.

    The watchdog covers the executor and drafting; all else is fast. `pace` says how fast steps follow one another, for
    predicted waits.

    A row can have drafts only where no other row of its request is in flight: proposers continue the tokens that the
    host knows, a draft model's memory tracks them, and the row carries token ids that the commit compares and appends.
    So if the speculator wants to draft for a request that a step samples for, the step completes before the next one is
    planned. Other steps are followed at once: those that compute prompts, those after which requests end, and, where
    none is to have drafts next, those with drafts.

    In a pipeline, each step completes before the next one is planned as long as the speculator wants to draft for any
    request in decode: it is drafted for when nothing is in flight, and has drafts only in a step that is alone.
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
        """`before_launch` is called before each launch, outside the watchdog."""
        scheduler.async_depth, scheduler.micro_batches = executor.async_depth, executor.micro_batches
        self.pace = StepSlowdown()
        self.on_step: Callable[[StepPlan, int], None] | None = None
        """Called on the engine thread with each step that has a result, and its time in nanoseconds: from its launch
        or, if there was work left then, from the end of the step before it, with the host's part."""
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._watchdog = watchdog
        self._speculator = speculator if executor.takes_drafts else None
        self._before_launch = before_launch
        self._in_flight: deque[_Launched] = deque()
        self._has_more = False
        """Whether there was work left when the last step had completed."""
        self._launched_nothing = False

    @property
    def has_work(self) -> bool:
        """Whether a step is in flight, or can be planned."""
        return bool(self._in_flight) or self._scheduler.has_work

    @property
    def is_stalled(self) -> bool:
        """Whether the last call launched nothing, as requests need blocks that are being copied."""
        fetches = self._scheduler.fetches
        return self._launched_nothing and fetches is not None and fetches.is_copying and not self._in_flight

    def step(self) -> list[TokenDelta]:
        """Launch the next step, then wait for the oldest one in flight unless there is room for another. Returns its
        deltas.

        After a failed launch nothing is launched until that step has failed in its turn.

        Raises:
            StepHung: the executor took so long that the watchdog gave it up.
            DeviceLost: no further step can be computed.
        """
        if self._in_flight and self._drafts_follow(self._in_flight[-1].plan):
            return self._complete()
        launched = self._launch()
        self._launched_nothing = launched is None
        if launched is None:
            return self._complete() if self._in_flight else []
        if isinstance(launched.pending, _FailedLaunch):
            return [delta for _ in range(len(self._in_flight)) for delta in self._complete()]
        return self._complete() if len(self._in_flight) > self._scheduler.async_depth else []

    def rest(self) -> None:
        """Called where there is no work, as after the last request has left between two steps. The time until the next
        step is charged to nothing."""
        self.pace.rest()
        self._has_more = False

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
        """The next step and the proposals for it; None for the proposals if there is no speculator."""
        now_ns = time.monotonic_ns()
        limits = self._scheduler.step_limits(now_ns)
        speculator = self._speculator
        if speculator is None:
            return self._scheduler.schedule(now_ns, limits=limits), None
        load = self._load()
        proposals: Proposals | None = Proposals(load)
        if self._in_flight or not speculator.wants(load, self._drafted_ranks()):
            return self._scheduler.schedule(now_ns, limits=limits), proposals

        def draft(room: DraftCapacity) -> Drafts:
            nonlocal proposals
            proposals = self._propose(speculator, room, load)
            return {} if proposals is None else proposals.drafts

        plan = self._scheduler.schedule(now_ns, limits=limits, draft=draft)
        return plan, proposals

    def stats(self, now_ns: int) -> SchedulerStats:
        """The scheduler's stats with those of speculation, launches and experts. Callable from any thread."""
        executor = self._executor
        stats = replace(self._scheduler.stats(now_ns), launches=executor.launches, expert_tokens=executor.expert_tokens)
        speculator = self._speculator
        if speculator is None:
            return stats
        return replace(stats, speculation=speculator.stats(self._scheduler.class_names))

    def _propose(self, speculator: Speculator, room: DraftCapacity, load: SpeculationLoad) -> Proposals | None:
        """Drafts for the step being planned, with their time charged. Drafting is optional: if it fails, it is switched
        off."""
        try:
            with self._watchdog:
                proposals = speculator.propose(room, load)
        except (StepHung, DeviceLost):
            raise
        except OutOfDeviceMemory as error:
            logger.warning("out of device memory while drafting: %s", error)
            return Proposals(load)
        except Exception:
            logger.exception("drafting failed and is switched off for this model")
            self._speculator = None
            return None
        for call in proposals.calls:
            self._scheduler.charge_drafting(call.requests, call.elapsed_ns)
        return proposals

    def _device_idle_ns(self, launched_ns: int, proposals: Proposals | None) -> int:
        """Idle time of a device that could have had its next step in flight already. A step without drafts would not
        wait for the host, so this time is a cost of drafting."""
        if proposals is None or not self._scheduler.async_depth or self._in_flight or not self._has_more:
            return 0
        drafting_ns = sum(call.elapsed_ns for call in proposals.calls)
        return max(0, launched_ns - self._clock.last_end_ns - drafting_ns)

    def _load(self) -> SpeculationLoad:
        scheduler = self._scheduler
        return SpeculationLoad(len(scheduler.running), scheduler.waiting, scheduler.context_tokens)

    def _drafts_follow(self, plan: StepPlan) -> bool:
        """Whether the speculator wants to draft for requests of a step in flight, when its result is known."""
        if self._speculator is None:
            return False
        load = self._load()
        if not self._speculator.wants(load, self._drafted_ranks()):
            return False
        if self._scheduler.micro_batches > 1:
            return True
        ranks = {row.request.rank for row in plan.rows if can_have_drafts_next(row)}
        return self._speculator.wants(load, ranks)

    def _drafted_ranks(self) -> Collection[int]:
        """The ranks whose requests might be drafted for: in a pipeline, those in decode."""
        if self._scheduler.micro_batches == 1:
            return self._scheduler.ranks
        return {request.rank for request in self._scheduler.running if decodes(request)}

    def _complete(self) -> list[TokenDelta]:
        """Wait for the oldest step in flight and commit its result."""
        step = self._in_flight.popleft()
        before_ns = self._clock.last_end_ns if self._has_more else step.launched_ns
        try:
            with self._watchdog:
                result = step.pending.result()
        except (StepHung, DeviceLost):
            raise
        except OutOfDeviceMemory as error:
            logger.warning("out of device memory for a step of %d tokens: %s", step.plan.total_tokens, error)
            deltas = self._scheduler.give_back(
                step.plan, "the device has no memory for this request", elapsed_ns=self._elapsed_ns(step)
            )
        except Exception:
            logger.exception("a step of %d rows failed", len(step.plan.rows))
            deltas = self._scheduler.fail(
                step.plan, "the engine could not compute this step", elapsed_ns=self._elapsed_ns(step)
            )
        else:
            elapsed_ns = self._elapsed_ns(step)
            if self.on_step is not None:
                self.on_step(step.plan, self._clock.last_end_ns - before_ns)
            deltas = self._scheduler.commit(step.plan, result, elapsed_ns=elapsed_ns)
            if self._speculator is not None and step.proposals is not None:
                taken_ns = elapsed_ns + step.device_idle_ns
                self._speculator.observe(step.proposals, step.plan, result, _work_of(step.plan), taken_ns)
        self._record_pace(step)
        self._has_more = self.has_work
        return deltas

    def _elapsed_ns(self, step: _Launched) -> int:
        """The device time of a completed step. Called once for each step."""
        begun_ns = max(step.launched_ns, self._clock.last_end_ns)
        self._clock.last_end_ns = time.monotonic_ns()
        return self._clock.last_end_ns - begun_ns

    def _record_pace(self, step: _Launched) -> None:
        """Record predicted against actual time. Called after the cost model has learnt from the step, as an untrained
        model knows nothing of this machine."""
        predicted_ns = self._scheduler.cost_model.predict_ns(_work_of(step.plan))
        self.pace.observe(predicted_ns, step.launched_ns, time.monotonic_ns(), more=self.has_work)


def _work_of(plan: StepPlan) -> StepWork:
    return step_work([row.start for row in plan.rows], [row.tokens for row in plan.rows])
