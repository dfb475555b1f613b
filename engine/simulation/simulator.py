"""Runs traffic through the scheduler and the fake executor in virtual time, and checks all invariants."""

from collections import deque
from dataclasses import dataclass, replace
from hashlib import sha256
from random import Random
from typing import Unpack

from engine.errors import OutOfDeviceMemory, UnservableRequest
from engine.memory import KVCacheManager, SequenceStates, StatePool
from engine.memory.state_pool import StateUse
from engine.memory.tiers import KVTier, TierConfig
from engine.request import Phase, Request
from engine.scheduling import PendingStep, ScheduledRow, Scheduler, StepPlan, StepResult
from engine.scheduling.block_fetches import computing_time
from engine.scheduling.cost import StepCostModel, StepWork, row_work, total
from engine.simulation.audited_pool import AuditedPool
from engine.simulation.auditor import Auditor
from engine.simulation.device import Device, Stages, StepTime
from engine.simulation.draft_audit import DraftAuditor
from engine.simulation.driver import Transcript, request_of
from engine.simulation.fake_adapters import FakeAdapterLoader
from engine.simulation.fake_copier import BLOCK_BYTES, FakeCopier
from engine.simulation.fake_executor import DeviceFailure, FakeExecutor
from engine.simulation.fake_proposer import FakeProposer, running_only
from engine.simulation.fault_injector import TO_A_REQUEST, FaultInjector
from engine.simulation.in_flight_audit import InFlightAuditor
from engine.simulation.oracle import check_transcript
from engine.simulation.patterns import ModelOptions, traffic_from_seed
from engine.simulation.report import EVENTS_SHOWN, SimulationFailure, SimulationReport
from engine.simulation.time_audit import TimeAuditor
from engine.simulation.traffic import VOCAB_SIZE, Arrival, Fault, Traffic

MAX_STEPS = 20_000

FULL_CHECK_EVERY = 8
"""The interval, in steps, of the checks of the whole state, which are O(everything); the offset depends on the seed.
Each step's effects are checked in every step. A violated invariant of the state stays violated, so these checks find it
a few steps later; a replay checks after each call and finds the step."""


def simulate(seed: int, **options: Unpack[ModelOptions]) -> SimulationReport:
    """Run the seed's traffic: faults while requests arrive, then none until the last one is done.

    Raises:
        SimulationFailure: an invariant was violated, a token stream differs from the expected one, or something is left
            when all requests are done.
    """
    return simulate_traffic(traffic_from_seed(seed, **options))


def simulate_traffic(traffic: Traffic, *, check_every: int = FULL_CHECK_EVERY) -> SimulationReport:
    """The same for given traffic. `check_every=1` also checks within each step."""
    simulation = _Simulation(traffic, check_every)
    try:
        return simulation.run()
    except Exception as error:
        raise SimulationFailure(traffic, simulation.step, error, simulation.events) from error


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step in flight: its work, its time on the device, the device's good steps before it, and when it ends."""

    plan: StepPlan
    pending: PendingStep
    work: StepWork
    time: StepTime
    good_steps: int
    ends_ns: int


@dataclass(frozen=True, slots=True)
class _NeverLaunched:
    """A `PendingStep` whose launch ran out of device memory."""

    error: OutOfDeviceMemory

    def result(self) -> StepResult:
        raise self.error


class _Simulation:
    def __init__(self, traffic: Traffic, check_every: int) -> None:
        self.step = 0
        self.events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._traffic = traffic
        self._check_every = check_every
        self._pool = AuditedPool(traffic.num_blocks)
        self._states: SequenceStates | None = None
        if traffic.states:
            states = StatePool(traffic.states, traffic.config.max_running)
            self._states = SequenceStates(states, traffic.state_interval_blocks)
        cost_model, tier = StepCostModel(), None
        if traffic.tier_slots:
            owner_slots = max(1, int(traffic.config.tenant_cache_fraction * traffic.tier_slots))
            tier_config = TierConfig(traffic.tier_slots, BLOCK_BYTES, owner_slots, traffic.tier_idle_ns)
            tier = KVTier(self._pool, tier_config, computing_time(cost_model))
        cache = KVCacheManager(
            self._pool,
            prefix_cache=traffic.prefix_cache,
            blocks_a_step=traffic.blocks_a_step,
            states=self._states,
            windows=traffic.windows,
            tier=tier,
        )
        self._scheduler = Scheduler(
            traffic.config,
            cache,
            traffic.max_model_len,
            cost_model,
            longest_step_ns=traffic.longest_step_ns,
            adapter_slots=traffic.adapter_slots,
            adapter_wait_ns=traffic.adapter_wait_ns,
        )
        self._scheduler.async_depth, self._scheduler.micro_batches = traffic.ahead, traffic.stages
        self._poisoned_at = {arrival.id: arrival.poisoned_at for arrival in traffic.arrivals}
        self._executor = FakeExecutor(
            traffic.num_blocks,
            VOCAB_SIZE,
            async_depth=traffic.ahead,
            stages=traffic.stages,
            num_states=traffic.states,
            windows=traffic.windows,
            is_poisoned=self._is_poisoned,
        )
        self._adapter_loader = FakeAdapterLoader(traffic.seed, self._scheduler, self._executor)
        self._copier: FakeCopier | None = None
        if traffic.tier_slots:
            self._copier = FakeCopier(traffic.seed, self._scheduler, self._pool, self._executor)
            self._pool.on_publish = self._copier.note_published
        self._launched: deque[_Launched] = deque()
        self._device = Device(traffic.seed, traffic.device_speed, traffic.token_factor)
        self._stages = Stages(traffic.stages)
        self._last_end_ns = 0
        self._arrivals, self._faults = deque(traffic.arrivals), deque(traffic.faults)
        self._faults_in_flight: list[Fault] = []
        self._requests: dict[str, Request] = {}
        self._alive: list[Request] = []
        self._transcripts: dict[str, Transcript] = {}
        self._proposer = FakeProposer(traffic.seed, self._executor) if traffic.speculate else None
        classes = traffic.config.classes
        windows = {service_class.name: traffic.window_tokens_of(service_class) for service_class in classes}
        self._draft_auditor = DraftAuditor(windows, traffic.config.chunk_tokens) if traffic.speculate else None
        self._in_flight_auditor = InFlightAuditor(plain=not (traffic.states or traffic.windows or traffic.stages > 1))
        self._auditor = Auditor(
            traffic.config,
            self._scheduler,
            self._pool,
            self._in_flight_auditor,
            self._draft_auditor,
            groups=cache.groups,
            stages=traffic.stages,
        )
        self._time_auditor = TimeAuditor(traffic.config, self._scheduler, traffic.longest_step_ns, traffic.stages)
        self._prompt_rank = 0
        self._now_ns = 0
        self._started: dict[str, Request] = {}
        """Requests that ran before the last step was scheduled."""
        self._draws = Random(traffic.seed)
        self._trace = sha256()
        self._injector = FaultInjector(
            self._scheduler, self._executor, self._device, self._time_auditor, self._transcripts, self._record
        )

    def run(self) -> SimulationReport:
        while self._has_work:
            assert self.step < MAX_STEPS, "the queue does not drain"
            self._take_arrivals()
            self._take_faults()
            self._injector.resume(self._now_ns)
            while self._launched and self._proposer is not None and self._proposer.waits_for_result():
                self._complete(self._launched.popleft())
            self._update_adapters()
            self._update_copier()
            self._alive = [request for request in self._alive if request.phase is not Phase.FINISHED]
            plan = self._schedule()
            if plan is not None:
                kept = self._traffic.ahead if self._launch(plan) else 0
                while len(self._launched) > kept:
                    self._complete(self._launched.popleft())
                self.step += 1
            elif self._launched:
                self._complete(self._launched.popleft())
            elif not self._is_busy():
                reported = self._update_copier()  # the plan may have begun a fetch
                if not reported:
                    self._sleep()
        self._check_state()
        self._check_end()
        stats = self._scheduler.stats()
        return SimulationReport(
            seed=self._traffic.seed,
            pattern=self._traffic.pattern,
            steps=self.step,
            requests=len(self._requests),
            preemptions=stats.preemptions_total,
            cached_tokens=stats.cached_tokens_total,
            failures=stats.failures_total,
            wasted_rows=stats.wasted_rows_total,
            accepted_drafts=0 if self._draft_auditor is None else self._draft_auditor.accepted,
            rejected_drafts=0 if self._draft_auditor is None else self._draft_auditor.rejected,
            adapter_loads=self._adapter_loader.loaded,
            fetched_blocks=0 if self._copier is None else self._copier.fetched_blocks,
            virtual_ns=self._now_ns,
            faults=dict(sorted(self._injector.counts.items())),
            trace_hash=self._trace.hexdigest(),
        )

    @property
    def _has_work(self) -> bool:
        events = self._arrivals or self._faults or self._launched or self._injector.pauses_end_ns
        copies = self._copier is not None and self._copier.ends_ns
        return bool(events or self._adapter_loader.ends_ns or copies) or self._scheduler.has_work

    def _is_busy(self) -> bool:
        """Whether the next plan may have rows, though nothing is in flight."""
        returning = self._scheduler.returning_blocks or self._scheduler.adapters.changed
        return bool(returning) or any(request.is_allocating for request in self._alive)

    def _sleep(self) -> None:
        """Advance the time to the next event."""
        copying = self._copier is not None and self._copier.is_copying  # requests may wait for blocks that it has
        assert copying or not self._scheduler.has_work, "requests are left and nothing is scheduled"
        self._faults_in_flight.clear()
        nexts = [events[0].at_ns for events in (self._arrivals, self._faults) if events]
        nexts += [*self._injector.pauses_end_ns, *self._adapter_loader.ends_ns]
        nexts += [] if self._copier is None else self._copier.ends_ns
        self._now_ns = max(self._now_ns, min(nexts, default=0))

    def _update_adapters(self) -> None:
        """End and begin the loads of adapters, which may preempt requests."""
        for delta in self._adapter_loader.update(self._now_ns):
            self._transcripts[delta.request_id].add(delta)
            self._record(repr(delta))
        if self._check_every == 1:
            self._scheduler.check()

    def _update_copier(self) -> bool:
        """End and begin copies between the pools. Returns whether the copier has reported."""
        if self._copier is None:
            return False
        reported = self._copier.update(self._now_ns)
        if self._check_every == 1:
            self._scheduler.check()
        return reported

    def _schedule(self) -> StepPlan | None:
        budget = self._budget()
        self._auditor.before_step(self._alive, self.step)
        running = sum(request.phase is Phase.RUNNING for request in self._alive)
        self._started = {request.id: request for request in self._alive if request.phase is Phase.RUNNING}
        alone = self._traffic.stages == 1 or not self._launched
        drafts = self._draft() if alone else {}
        draft = (lambda _: drafts) if drafts or self._traffic.stages == 1 else None
        limits = self._scheduler.step_limits(self._now_ns)
        self._time_auditor.check_limits(limits, self._now_ns)
        self._time_auditor.before_schedule()
        self._prompt_rank = self._highest_prompt()
        plan = self._scheduler.schedule(self._now_ns, budget=budget, limits=limits, draft=draft)
        if self._check_every == 1:
            self._scheduler.check()
        budget_tokens = min(self._traffic.config.step_tokens, max(budget, running + 1))
        self._auditor.after_schedule(plan, budget_tokens, limits, self._now_ns)
        if plan is not None:
            self._time_auditor.check_length(plan)
        self._check_plan(plan, divided=draft is None)
        starting = [row.request for row in plan.rows] if plan is not None else []
        starting += [request for request in self._alive if request.is_allocating]
        self._time_auditor.check_start(starting, self._now_ns)
        return plan

    def _draft(self) -> dict[Request, tuple[int, ...]]:
        """Draft for some of the requests, useful or not, and charge the time of drafting."""
        if self._proposer is None:
            return {}
        drafts = self._proposer.propose(self._alive)
        if running := running_only(drafts):
            elapsed_ns = self._proposer.drafting_ns()
            self._now_ns += elapsed_ns
            self._scheduler.charge_drafting(running, elapsed_ns)
            self._time_auditor.on_drafting(elapsed_ns)
        return drafts

    def _launch(self, plan: StepPlan) -> bool:
        """Launch a step. False: it is out of device memory, so nothing is launched before it is complete."""
        self._record(
            f"step {plan.step}: {plan.copies} "
            + " ".join(
                f"{row.request.id}[{row.start}+{row.tokens}{'*' if row.samples else ''}{row.drafts or ''}]"
                f"@{row.request.slot}"
                f"{row.request.block_table}{row.request.window_tables or ''}"
                for row in plan.rows
            )
        )
        pending: PendingStep
        try:
            pending = self._executor.execute(plan)
        except OutOfDeviceMemory as error:
            pending = _NeverLaunched(error)
        self._in_flight_auditor.on_launch(plan)
        work = total(row_work(row.start, row.tokens) for row in plan.rows)
        time = self._device.run(work)
        ends_ns = self._stages.run(self._now_ns, time.elapsed_ns)
        time = replace(time, elapsed_ns=ends_ns - max(self._now_ns, self._last_end_ns))
        self._last_end_ns = ends_ns
        self._launched.append(_Launched(plan, pending, work, time, self._device.good_steps, ends_ns))
        return not isinstance(pending, _NeverLaunched)

    def _complete(self, step: _Launched) -> None:
        plan, elapsed_ns = step.plan, step.time.elapsed_ns
        self._now_ns = max(self._now_ns, step.ends_ns)
        self._time_auditor.after_step(step.work, step.time, step.good_steps)
        for fault in self._faults_in_flight:
            self._apply(fault)
        self._faults_in_flight.clear()
        if self._draws.random() < 0.2:
            self._take_arrivals()  # otherwise requests that arrived during the step are added after it
        self._auditor.before_commit(plan)
        try:
            result = step.pending.result()
        except OutOfDeviceMemory as error:
            deltas = self._scheduler.give_back(plan, str(error), elapsed_ns=elapsed_ns)
            self._auditor.after_give_back(plan, deltas)
            self._injector.counts["given back"] += 1
        except DeviceFailure as error:
            deltas = self._scheduler.fail(plan, str(error), elapsed_ns=elapsed_ns)
            self._auditor.after_commit(plan, deltas, None)
        else:
            deltas = self._scheduler.commit(plan, result, elapsed_ns=elapsed_ns)
            self._auditor.after_commit(plan, deltas, result)
        for delta in deltas:
            self._transcripts[delta.request_id].add(delta)
            self._record(repr(delta))
        if (self.step + self._traffic.seed) % self._check_every == 0:
            self._check_state()

    def _check_state(self) -> None:
        """Check the whole state: the scheduler's own invariants and the auditors'."""
        self._scheduler.check()
        self._time_auditor.check_books(self._requests.values())
        self._time_auditor.check_loads([request for request in self._alive if request.phase is not Phase.FINISHED])
        self._time_auditor.check_waits()

    def _budget(self) -> int:
        """Any budget that a caller might pass."""
        step_tokens = self._traffic.config.step_tokens
        return self._draws.randint(0, step_tokens) if self._draws.random() < 0.3 else step_tokens

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].at_ns <= self._now_ns:
            self._arrive(self._arrivals.popleft())

    def _arrive(self, arrival: Arrival) -> None:
        request = request_of(arrival, len(self._requests), self._requests)
        self._requests[arrival.id] = request
        window_tokens = self._traffic.window_tokens_of(arrival.service_class)
        fits = request.prompt_tokens + min(request.max_tokens, 1) <= window_tokens
        try:
            self._scheduler.add(request, self._now_ns)
        except UnservableRequest:
            request.phase = Phase.FINISHED
            assert not fits, f"{arrival.id} was refused"
        else:
            assert fits, f"{arrival.id} was not refused"
            self._alive.append(request)
            self._transcripts[arrival.id] = Transcript()
            self._auditor.on_arrival(request, self._now_ns)
            self._time_auditor.on_arrival(request, self._now_ns)
        self._record(f"{arrival.id} arrives")

    def _take_faults(self) -> None:
        while self._faults and self._faults[0].at_ns <= self._now_ns:
            fault = self._faults.popleft()
            if fault.in_flight and fault.kind in TO_A_REQUEST:
                self._faults_in_flight.append(fault)
            else:
                self._apply(fault)

    def _apply(self, fault: Fault) -> None:
        self._now_ns = self._injector.apply(fault, self._alive, self._now_ns)

    def _check_plan(self, plan: StepPlan | None, *, divided: bool) -> None:
        """`divided`: among the steps of a pipeline."""
        config = self._traffic.config
        if plan is None:
            return
        assert all(0 < row.tokens <= config.chunk_tokens for row in plan.rows), "a chunk is over its limit"
        computing = [row.request.id for row in plan.rows]
        assert len(set(computing)) == len(computing), "a request has two rows"
        running = [
            request
            for request in self._alive
            if request.phase is Phase.RUNNING and not (request.is_allocating or self._ends(request))
        ]
        missing = [request for request in running if request.id not in computing]
        yielded = {each for each in missing if each.service_class.yields and self._prompt_rank < each.rank}
        stages, others = self._traffic.stages if divided else 1, [each for each in running if each not in yielded]
        left_out = self._in_flight_auditor.left_out(others, self._started, plan, stages)
        expected = [request.id for request in others if request not in left_out]
        assert sorted(computing) == sorted(expected), "a request that runs is left out, or one that does not is in"
        if yielded:
            above = min(each.rank for each in yielded)
            assert min(row.request.rank for row in plan.rows) < above, "a request yields, and no class above has a row"
        numbers = [request.arrival for request in self._alive]
        assert numbers == sorted(set(numbers)), "a request has lost its place"

    def _highest_prompt(self) -> int:
        """The highest rank that has a prompt to compute; else the number of classes."""
        prompts = (
            request.rank
            for request in self._alive
            if request.phase is Phase.WAITING
            or (request.phase is Phase.RUNNING and len(request.tokens) - request.scheduled > 1)
        )
        return min(prompts, default=len(self._traffic.config.classes))

    def _ends(self, request: Request) -> bool:
        """Whether all that is left to compute of the request is in flight."""
        return self._in_flight_auditor.ends(request, self._traffic.window_tokens_of(request.service_class))

    def _check_end(self) -> None:
        stats = self._scheduler.stats()
        assert stats.wasted_rows_total == self._in_flight_auditor.wasted_rows, "wasted rows are miscounted"
        assert stats.free_blocks == stats.num_blocks, "blocks are lost"
        if self._states is not None:
            kept = self._states.pool.count(StateUse.FREE) + self._states.pool.count(StateUse.SNAPSHOT)
            assert kept == self._states.pool.num_slots, "state slots are lost"
        if self._draft_auditor is not None:
            self._draft_auditor.check_usage(self._requests)
        assert not self._scheduler.adapters.waiting, "requests wait for their adapters"
        if self._copier is not None:
            self._copier.check_end()
        assert stats.running == stats.waiting == stats.paused == 0, "requests are lost"
        self._time_auditor.check_pauses(self._requests.values(), stats.paused_ns_total)
        for arrival in self._traffic.arrivals:
            window_tokens = self._traffic.window_tokens_of(arrival.service_class)
            if arrival.id in self._transcripts:
                ended = self._transcripts[arrival.id]
                assert ended.finish_reason is not None, f"{arrival.id} never ended"
                check_transcript(arrival, ended, window_tokens)
                assert ended.usage == self._requests[arrival.id].usage, f"{arrival.id} is charged after its end"
            elif arrival.id in self._injector.aborted:
                check_transcript(arrival, self._injector.aborted[arrival.id], window_tokens)

    def _is_poisoned(self, row: ScheduledRow) -> bool:
        position = self._poisoned_at[row.request.id]
        return position is not None and row.start <= position < row.start + row.tokens

    def _record(self, event: str) -> None:
        self.events.append(event)
        self._trace.update(event.encode() + b"\n")
