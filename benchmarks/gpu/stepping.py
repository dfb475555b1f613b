"""A model with its scheduler and its runner, stepped by hand as the engine's thread does, each part of it timed."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.execution.device.graphs import CudaCapture
from engine.execution.device.runner import DeviceRunner
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.memory.kv_memory import SAVED_STATES
from engine.memory.sequence_states import SequenceStates
from engine.memory.state_pool import StatePool
from engine.models.transformer import Transformer
from engine.request import Request, SamplingParams, ServiceClass, TokenDelta
from engine.scheduling.drafting import DraftCapacity, Drafts
from engine.scheduling.plan import PendingStep, StepPlan
from engine.scheduling.scheduler import Scheduler
from engine.speculation import SpeculationLoad, Speculator
from kernels.triton.step_ops import TritonStepOps

_CLASS = ServiceClass("benchmark", priority=0)
"""One class: nothing is reserved, and no step is shortened for a deadline."""

GREEDY = SamplingParams(temperature=0, ignore_eos=True)


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Host nanoseconds of one turn: planning a step, launching it, waiting for the oldest and taking that in.

    `rows` and `tokens` are those of the step that was launched, 0 where none was; `landed` what came of the other.
    """

    rows: int
    tokens: int
    schedule_ns: int
    launch_ns: int
    wait_ns: int
    commit_ns: int
    landed: list[TokenDelta]

    @property
    def host_ns(self) -> int:
        return self.schedule_ns + self.launch_ns + self.commit_ns


@dataclass(slots=True)
class _Flight:
    plan: StepPlan
    step: PendingStep


@dataclass(slots=True)
class DeviceClock:
    """When the device began and ended each step, by its own clock."""

    spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)

    def around(self, launch: Callable[[], PendingStep]) -> PendingStep:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step = launch()
        end.record()
        self.spans.append((start, end))
        return step

    def idle_share(self) -> float:
        """The part of the time from the first step's start to the last one's end in which no step was under way."""
        torch.cuda.synchronize()
        whole = self.spans[0][0].elapsed_time(self.spans[-1][1])
        return 1 - sum(start.elapsed_time(end) for start, end in self.spans) / whole


class Stepper:
    """Requests of one model on one device. Decode steps are replayed after `record`.

    `clock`: None, or what the steps to come are timed with. With a `speculator` no step is launched ahead.
    """

    def __init__(
        self,
        model: Transformer,
        *,
        slots: int,
        num_blocks: int,
        window: int,
        step_tokens: int,
        chunk_tokens: int | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        config = SchedulerConfig(
            max_running=slots,
            step_tokens=step_tokens,
            chunk_tokens=chunk_tokens or step_tokens,
            classes=(_CLASS,),
            tenant_cache_fraction=1.0,
        )
        self.model = model
        self.pool = BlockPool(num_blocks)
        self.states = None if model.config.linear is None else StatePool((1 + SAVED_STATES) * slots, slots)
        self.runner = DeviceRunner(
            model,
            TritonStepOps(),
            num_blocks=num_blocks,
            num_slots=slots,
            max_model_len=window,
            num_states=0 if self.states is None else self.states.num_slots,
        )
        states = None if self.states is None else SequenceStates(self.states)
        self.scheduler = Scheduler(config, KVCacheManager(self.pool, states=states), window)
        self.scheduler.async_depth = self.runner.async_depth
        self.clock: DeviceClock | None = None
        self._speculator = speculator
        self._flights: deque[_Flight] = deque()
        self._arrivals = 0

    def record(self) -> None:
        """Capture CUDA graphs of the decode steps; nothing may be in flight. Does nothing without a GPU."""
        if self.model.ops.device.type == "cuda":
            self.runner.capture_graphs(CudaCapture(), self.runner.graph_sizes(drafts=self._speculator is not None))

    def add(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        params: SamplingParams = GREEDY,
        seed: int = 0,
        salt: bytes = b"",
    ) -> Request:
        request = Request(
            id=str(self._arrivals),
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            params=params,
            seed=seed,
            max_tokens=max_tokens,
            eos_token_ids=(),
            arrival=self._arrivals,
            service_class=_CLASS,
            salt=salt,
        )
        self._arrivals += 1
        self.scheduler.add(request, time.monotonic_ns())
        return request

    def step(self) -> StepTimes | None:
        """Launch a step, then wait for the oldest one if more are in flight than the runner takes ahead."""
        started = time.perf_counter_ns()
        must_land = self._speculator is not None and bool(self._flights)
        plan = None if must_land else self.scheduler.schedule(time.monotonic_ns(), draft=self._draft)
        planned = time.perf_counter_ns()
        if plan is not None:
            self._flights.append(_Flight(plan, self._launch(plan)))
        launched = landed = taken = time.perf_counter_ns()
        deltas: list[TokenDelta] = []
        if plan is None and not self._flights:
            return None
        if plan is None or len(self._flights) > self.scheduler.async_depth:
            flight = self._flights.popleft()
            result = flight.step.result()
            landed = time.perf_counter_ns()
            deltas = self.scheduler.commit(flight.plan, result, elapsed_ns=landed - started)
            taken = time.perf_counter_ns()
        return StepTimes(
            rows=0 if plan is None else len(plan.rows),
            tokens=0 if plan is None else plan.total_tokens,
            schedule_ns=planned - started,
            launch_ns=launched - planned,
            wait_ns=landed - launched,
            commit_ns=taken - landed,
            landed=deltas,
        )

    def run(self, preempt_every: int | None = None) -> dict[str, list[int]]:
        """Step until all is done; the tokens of each request. Preempts a running one every `preempt_every` steps."""
        tokens: dict[str, list[int]] = {}
        steps = 0
        while (times := self.step()) is not None:
            steps += 1
            for delta in times.landed:
                if delta.error is not None:
                    raise RuntimeError(f"request {delta.request_id}: {delta.error}")
                tokens.setdefault(delta.request_id, []).extend(delta.token_ids)
            running = [request.id for request in self.scheduler.running]
            if preempt_every and steps % preempt_every == 0 and running:
                self.scheduler.preempt(running[steps % len(running)])
        return tokens

    def drain(self) -> None:
        """End all requests, and wait for what is in flight."""
        for request in [*self.scheduler.running, *(each for queue in self.scheduler.waiting_queues for each in queue)]:
            self.scheduler.abort(request.id)
        self._land_all()

    def _draft(self, capacity: DraftCapacity) -> Drafts:
        if self._speculator is None:
            return {}
        load = SpeculationLoad(len(self.scheduler.running), 0, 0)
        return self._speculator.propose(capacity, load).drafts

    def _launch(self, plan: StepPlan) -> PendingStep:
        """A step that fails takes its requests with it, so that others can be measured after it."""
        try:
            if self.clock is None:
                return self.runner.execute(plan)
            return self.clock.around(lambda: self.runner.execute(plan))
        except Exception as error:
            self._land_all()
            self.scheduler.fail(plan, str(error))
            raise

    def _land_all(self) -> None:
        while self._flights:
            flight = self._flights.popleft()
            self.scheduler.commit(flight.plan, flight.step.result())


def blocks_for(requests: int, tokens: int) -> int:
    """Blocks that hold `requests` requests of `tokens` tokens, and some to spare."""
    return requests * -(-(tokens + BLOCK_TOKENS) // BLOCK_TOKENS) + 8
