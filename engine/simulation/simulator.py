"""Runs traffic through the scheduler and the fake executor, and checks what must hold after every step."""

from collections import deque
from dataclasses import dataclass
from hashlib import sha256
from random import Random

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import FinishReason, Phase, Request, ServiceClass, TokenDelta, UnservableRequest
from engine.scheduling import ScheduledRow, Scheduler, StepPlan
from engine.scheduling.cost import H200_LLAMA_8B, StepCostModel, row_work, total
from engine.simulation.auditor import AuditedPool, Auditor
from engine.simulation.driver import Transcript, make_request, run_to_completion
from engine.simulation.fake_executor import FakeExecutor
from engine.simulation.traffic import EOS_TOKEN, VOCAB_SIZE, Arrival, FaultKind, Traffic, traffic_from_seed

MAX_STEPS = 20_000
EVENTS_SHOWN = 30


class SimulationFailure(AssertionError):
    """An invariant broke. Says how to run it again, and what came just before."""

    def __init__(self, seed: int, step: int, cause: BaseException, events: list[str]) -> None:
        super().__init__(
            f"{cause!r} in step {step}; again with: python -m engine.simulation --seed {seed}\n  " + "\n  ".join(events)
        )
        self.seed = seed
        self.step = step


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What came of one seed. `trace_hash` covers every plan, every block table and every delta, in order."""

    seed: int
    steps: int
    requests: int
    preemptions: int
    cached_tokens: int
    failures: int
    trace_hash: str


def simulate(seed: int) -> SimulationReport:
    """Run the seed's traffic: faults while requests arrive, then none until the last one is done.

    Raises:
        SimulationFailure: an invariant broke, a token stream differs from that of the same request alone, or
            something is left when all are done.
    """
    simulation = _Simulation(traffic_from_seed(seed))
    try:
        return simulation.run()
    except Exception as error:
        raise SimulationFailure(seed, simulation.step, error, list(simulation.events)) from error


class _Simulation:
    def __init__(self, traffic: Traffic) -> None:
        self.step = 0
        self.events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._traffic = traffic
        self._pool = AuditedPool(traffic.num_blocks)
        self._scheduler = Scheduler(
            traffic.config, KVCacheManager(self._pool, prefix_cache=traffic.prefix_cache), traffic.max_model_len
        )
        self._poisoned_at = {arrival.id: arrival.poisoned_at for arrival in traffic.arrivals}
        self._executor = FakeExecutor(traffic.num_blocks, VOCAB_SIZE, is_poisoned=self._is_poisoned)
        self._requests: dict[str, Request] = {}
        self._aborted: dict[str, Transcript] = {}
        self._transcripts: dict[str, Transcript] = {}
        self._auditor = Auditor(traffic.config, self._scheduler, self._pool)
        self._cost_model = StepCostModel.from_coefficients(H200_LLAMA_8B)
        self._now_ns = 0
        self._budgets = Random(traffic.seed)
        self._trace = sha256()

    def run(self) -> SimulationReport:
        arrivals, faults = deque(self._traffic.arrivals), deque(self._traffic.faults)
        while arrivals or faults or self._scheduler.has_work:
            assert self.step < MAX_STEPS, "the queue does not drain"
            while arrivals and arrivals[0].at_step <= self.step:
                self._arrive(arrivals.popleft())
            failing = False
            in_flight: list[tuple[FaultKind, int]] = []
            while faults and faults[0].at_step <= self.step:
                fault = faults.popleft()
                if fault.kind is FaultKind.STEP_FAILURE:
                    failing = True
                elif fault.in_flight:
                    in_flight.append((fault.kind, fault.rank))
                else:
                    self._strike(fault.kind, fault.rank)
            self._run_step(in_flight, failing=failing)
            self.step += 1
        self._check_end()
        stats = self._scheduler.stats()
        return SimulationReport(
            seed=self._traffic.seed,
            steps=self.step,
            requests=len(self._requests),
            preemptions=stats.preemptions_total,
            cached_tokens=stats.cached_tokens_total,
            failures=stats.failures_total,
            trace_hash=self._trace.hexdigest(),
        )

    def _run_step(self, in_flight: list[tuple[FaultKind, int]], *, failing: bool) -> None:
        budget = self._budget()
        self._auditor.before_step(self._alive(), self.step)
        running = sum(request.phase is Phase.RUNNING for request in self._alive())
        plan = self._scheduler.schedule(self._now_ns, budget=budget)
        self._scheduler.check()
        most = self._traffic.config.step_tokens
        self._auditor.after_schedule(plan, min(most, max(budget, running + 1)))
        if plan is None:
            assert not self._scheduler.has_work, "requests are left and nothing is scheduled"
            return
        self._check_plan(plan)
        self._record(
            f"step {plan.step}: {plan.copies} "
            + " ".join(
                f"{row.request.id}[{row.start}+{row.tokens}{'*' if row.samples else ''}]@{row.request.slot}"
                f"{row.request.block_table}"
                for row in plan.rows
            )
        )
        elapsed_ns = self._cost_model.predict_ns(total(row_work(row.start, row.tokens) for row in plan.rows))
        self._now_ns += elapsed_ns
        self._auditor.elapsed_ns += elapsed_ns
        if failing:
            counters = self._auditor.counters()
            deltas = self._scheduler.fail(plan, "the simulated device failed", elapsed_ns=elapsed_ns)
        else:
            pending = self._executor.execute(plan)
            for kind, rank in in_flight:
                self._strike(kind, rank)
            counters = self._auditor.counters()
            deltas = self._scheduler.commit(plan, pending.result(), elapsed_ns=elapsed_ns)
        self._auditor.after_commit(plan, counters, failed=failing)
        for delta in deltas:
            self._deliver(delta)
        self._scheduler.check()
        self._auditor.check_time()

    def _budget(self) -> int:
        """What a caller with a time target might ask for: anything."""
        most = self._traffic.config.step_tokens
        return self._budgets.randint(0, most) if self._budgets.random() < 0.3 else most

    def _arrive(self, arrival: Arrival) -> None:
        request = _request_of(arrival, len(self._requests), self._requests)
        self._requests[arrival.id] = request
        self._transcripts[arrival.id] = Transcript()
        needed = request.prompt_tokens + min(request.max_tokens, 1)
        try:
            self._scheduler.add(request, self._now_ns)
        except UnservableRequest:
            request.phase = Phase.FINISHED
            assert needed > self._traffic.window_tokens_of(arrival.service_class), f"{arrival.id} was refused"
            del self._transcripts[arrival.id]
        else:
            assert needed <= self._traffic.window_tokens_of(arrival.service_class), f"{arrival.id} was not refused"
        self._record(f"{arrival.id} arrives")

    def _strike(self, kind: FaultKind, rank: int) -> None:
        alive = self._alive()
        if not alive:
            return
        victim = alive[rank % len(alive)]
        if kind is FaultKind.PREEMPT:
            self._scheduler.preempt(victim.id)
        else:
            assert self._scheduler.abort(victim.id)
            assert not self._scheduler.abort(victim.id)
            assert not victim.block_table, "an aborted request keeps blocks"
            self._aborted[victim.id] = self._transcripts.pop(victim.id)
        self._record(f"{kind.name.lower()} of {victim.id}")

    def _deliver(self, delta: TokenDelta) -> None:
        self._transcripts[delta.request_id].add(delta)
        self._record(repr(delta))

    def _check_plan(self, plan: StepPlan) -> None:
        config = self._traffic.config
        assert all(0 < row.tokens <= config.chunk_tokens for row in plan.rows), "a chunk is over its limit"
        computing = {row.request.id for row in plan.rows}
        assert len(computing) == len(plan.rows), "a request has two rows"
        for number, request in enumerate(self._requests.values()):
            assert request.arrival == number, f"{request.id} has lost its place"
            assert (request.phase is Phase.RUNNING) == (request.id in computing), f"{request.id} is left out"

    def _check_end(self) -> None:
        stats = self._scheduler.stats()
        assert stats.free_blocks == stats.num_blocks, "blocks are lost"
        assert stats.running == stats.waiting == 0, "requests are lost"
        for arrival in self._traffic.arrivals:
            if arrival.id in self._transcripts:
                ended = self._transcripts[arrival.id]
                assert ended.finish_reason is not None, f"{arrival.id} never ended"
                _check_transcript(arrival, ended, self._run_alone(arrival))
                _check_length(arrival, ended, self._traffic.window_tokens_of(arrival.service_class))
            elif arrival.id in self._aborted:
                _check_transcript(arrival, self._aborted[arrival.id], self._run_alone(arrival))

    def _run_alone(self, arrival: Arrival) -> Transcript:
        """The same request on a machine of its own: no neighbours, no cache, the prompt in one chunk."""
        window_tokens = self._traffic.window_tokens_of(arrival.service_class)
        num_blocks = window_tokens // BLOCK_TOKENS + 1
        config = SchedulerConfig(
            max_running=1,
            step_tokens=window_tokens,
            chunk_tokens=window_tokens,
            classes=(ServiceClass(arrival.service_class.name, priority=0),),
        )
        scheduler = Scheduler(config, KVCacheManager(BlockPool(num_blocks), prefix_cache=False), window_tokens)
        request = _request_of(arrival, 0, {})
        return run_to_completion(scheduler, FakeExecutor(num_blocks, VOCAB_SIZE), [request])[arrival.id]

    def _alive(self) -> list[Request]:
        return [request for request in self._requests.values() if request.phase is not Phase.FINISHED]

    def _is_poisoned(self, row: ScheduledRow) -> bool:
        position = self._poisoned_at[row.request.id]
        return position is not None and row.start <= position < row.start + row.tokens

    def _record(self, event: str) -> None:
        self.events.append(event)
        self._trace.update(event.encode() + b"\n")


def _request_of(arrival: Arrival, number: int, others: dict[str, Request]) -> Request:
    parent = None if arrival.fork_of is None else others.get(arrival.fork_of)
    return make_request(
        arrival.id,
        arrival.tokens,
        arrival=number,
        params=arrival.params,
        seed=arrival.seed,
        eos_token_ids=(EOS_TOKEN,),
        tenant=arrival.tenant,
        salt=arrival.tenant.encode(),
        service_class=arrival.service_class,
        fork_of=parent,
    )


def _check_transcript(arrival: Arrival, given: Transcript, alone: Transcript) -> None:
    """A request that ran to its end was given what it is given alone; one that was cut off, a beginning of it."""
    name = arrival.id
    assert given.token_ids == alone.token_ids[: len(given.token_ids)], f"{name} was given other tokens than alone"
    assert given.logprobs == alone.logprobs[: len(given.logprobs)], f"{name} was given other log-probabilities"
    assert given.prompt_logprobs in ((), alone.prompt_logprobs), f"{name}: prompt log-probabilities differ"
    if given.usage is None:
        return  # aborted
    assert given.usage.prompt_tokens == len(arrival.tokens)
    assert given.usage.completion_tokens == len(given.token_ids) + (given.stop_token is not None)
    assert given.usage.cached_tokens < len(arrival.tokens)
    if given.finish_reason is FinishReason.ERROR:
        assert given.error, f"{name} failed without saying why"
        return
    assert given.finish_reason == alone.finish_reason, f"{name} ended for another reason"
    assert given.stop_token == alone.stop_token, f"{name} ended with another token"
    assert len(given.token_ids) == len(alone.token_ids), f"{name} was given fewer tokens than alone"
    assert given.prompt_logprobs == alone.prompt_logprobs, f"{name} was not given its prompt's log-probabilities"


def _check_length(arrival: Arrival, given: Transcript, window_tokens: int) -> None:
    """It ended by the rules of stopping, which the run alone has in common and so cannot judge."""
    assert given.usage is not None
    drawn, params = given.usage.completion_tokens, arrival.params
    most = min(params.max_tokens or 0, window_tokens - len(arrival.tokens))
    assert drawn <= most, f"{arrival.id} was given too many tokens"
    if given.finish_reason is FinishReason.LENGTH:
        assert drawn == most, f"{arrival.id} was cut off early"
    if given.finish_reason is FinishReason.STOP:
        assert drawn > params.min_tokens, f"{arrival.id} stopped before min_tokens"
        assert given.stop_token in ((EOS_TOKEN,) if not params.ignore_eos else ()) + params.stop_token_ids
    unstopped = given.token_ids[params.min_tokens :]
    assert params.ignore_eos or EOS_TOKEN not in unstopped, f"{arrival.id} ran past the end of text"
    assert not set(params.stop_token_ids) & set(unstopped), f"{arrival.id} ran past a stop token"
