"""A replica of a simulated fleet."""

import itertools
from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Protocol

from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.memory.prefix_journal import PrefixJournal
from engine.request import Request, TokenDelta
from engine.runtime.submission import Submission
from engine.runtime.wait_prediction import LoadReport, WaitPredictor
from engine.sampling_defaults import NO_DEFAULTS
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.scheduling.cost import StepCostModel, StepWork, step_work
from engine.scheduling.plan import StepPlan
from engine.scheduling.step_slowdown import StepSlowdown
from engine.simulation.driver import make_request
from engine.simulation.fleet_shape import MODEL, UNIFORM_NOISE, EventQueue, FleetShape, ReferenceTimes
from engine.simulation.fleet_traffic import ANSWER_TOKEN, VOCAB_SIZE
from engine.workers.messages import ModelFacts, Prefixes
from engine.workers.prefix_events import PUBLISH_SECONDS, PrefixPublisher

_PUBLISH_NS = round(PUBLISH_SECONDS * 1e9)


class FleetClient(Protocol):
    """A gateway as its replicas see it. `reports`: of each replica, with the times at which they arrive."""

    reports: list[deque[tuple[int, LoadReport]]]

    def receive(self, number: int, delta: TokenDelta, cached_tokens: int | None) -> None:
        """A first or a last token of replica `number`."""

    def learn(self, number: int, message: Prefixes) -> None:
        """A prefix event of replica `number`."""


class FleetWorker:
    """A replica: steps follow one another while there is work."""

    def __init__(self, number: int, shape: FleetShape, events: EventQueue, random: Random) -> None:
        self.pool = BlockPool(shape.num_blocks)
        cost_model = StepCostModel.from_coefficients(shape.prior)
        cache = KVCacheManager(self.pool, windows=shape.windows)
        self.scheduler = Scheduler(shape.scheduler, cache, shape.max_model_len, cost_model)
        self._pace = StepSlowdown()
        self.predictor = WaitPredictor(self.scheduler, self._pace)
        self.clients: Sequence[FleetClient] = ()
        self.busy_ns = self.peak_blocks = 0
        """The time of all steps, and the most blocks that were held after one."""
        self._number = number
        self._speed = shape.speeds[number]
        self._shape = shape
        self._events = events
        self._random = random
        self._device = shape.device or ReferenceTimes()
        self._arrivals = itertools.count()
        self._client_of: dict[str, int] = {}
        self._steps = False
        self._unplanned = False
        self.predictor.listeners = (self._report,)
        self.publisher = PrefixPublisher(MODEL, number)
        self._publishes = False
        journal = PrefixJournal()
        self.publisher.begin(self.scheduler.record_prefixes(journal), journal)

    def facts(self) -> ModelFacts:
        """As a worker states them when a client connects."""
        scheduler = self.scheduler
        return ModelFacts(
            name=MODEL,
            max_model_len=self._shape.max_model_len,
            windows={name: scheduler.window_tokens_of(name) for name in scheduler.class_names},
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(),
            created=0,
            version="1",
            takes_grammars=False,
            prefix_cache=True,
            sampling_defaults=NO_DEFAULTS,
            details=None,
            adapter_slots=0,
            ranks=dict(scheduler.class_ranks),
            load=self.predictor.report(),
        )

    def submit(self, client: int, submission: Submission) -> None:
        """A request arrives."""
        [request_id] = submission.request_ids
        request = make_request(
            request_id,
            submission.token_ids,
            arrival=next(self._arrivals),
            params=submission.params,
            tenant=submission.tenant,
            salt=submission.salt,
            service_class=submission.service_class,
        )
        self._client_of[request_id] = client
        now_ns = self._events.now_ns
        self.scheduler.add(request, now_ns)
        self.predictor.on_enqueue(request, now_ns)
        self._unplanned = True
        self.predictor.refresh(now_ns, [request_id])
        if not self._steps:
            self._steps = True
            self._events.after(0, self._step)

    def _step(self) -> None:
        now_ns = self._events.now_ns
        plan = self.scheduler.schedule(now_ns, limits=self.scheduler.step_limits(now_ns))
        if plan is None:
            self._pace.rest()
            self._steps = False
            return
        if self._unplanned:
            self._unplanned = False
            self.predictor.refresh(now_ns)
        starts, tokens = [row.start for row in plan.rows], [row.tokens for row in plan.rows]
        elapsed_ns = max(int(self._device.step_ns(starts, tokens) * self._speed * self._noise()), 1)
        work = step_work(starts, tokens)
        self._events.after(elapsed_ns, lambda: self._complete(plan, work, now_ns, elapsed_ns))

    def _noise(self) -> float:
        if self._shape.noise:
            return self._random.choice(self._shape.noise)
        return self._random.uniform(*UNIFORM_NOISE)

    def _complete(self, plan: StepPlan, work: StepWork, launched_ns: int, elapsed_ns: int) -> None:
        now_ns = self._events.now_ns
        self.busy_ns += elapsed_ns
        self.peak_blocks = max(self.peak_blocks, self.pool.num_blocks - self.pool.free_blocks)
        firsts = {row.request.id: row.request for row in plan.rows if row.samples and not row.request.output_tokens}
        result = StepResult(tuple(RowResult(ANSWER_TOKEN if row.samples else None) for row in plan.rows))
        deltas = self.scheduler.commit(plan, result, elapsed_ns=elapsed_ns)
        predicted_ns = self.scheduler.cost_model.predict_ns(work)
        self._pace.observe(predicted_ns, launched_ns, now_ns, more=self.scheduler.has_work)
        if not self.predictor.is_fresh(now_ns):
            self.predictor.refresh(now_ns, stepped=True)
        for delta in deltas:
            if delta.request_id in firsts or delta.finish_reason is not None:
                self._deliver(delta, firsts.get(delta.request_id))
        self._events.after(0, self._step)
        if not self._publishes and self.publisher.watched:
            self._publishes = True
            self._events.after(_PUBLISH_NS, self._publish)

    def watch(self, client: FleetClient) -> None:
        """A gateway asks for prefix events."""

        def send(message: Prefixes) -> None:
            self._events.after(self._shape.report_ns, lambda: client.learn(self._number, message))

        self.publisher.watch(client, send)

    def _publish(self) -> None:
        self.publisher.publish()
        self._publishes = not self.publisher.is_done
        if self._publishes:
            self._events.after(_PUBLISH_NS, self._publish)

    def _deliver(self, delta: TokenDelta, first: Request | None) -> None:
        """Only first and last tokens are sent: the others change nothing that is measured."""
        client = self.clients[self._client_of[delta.request_id]]
        if delta.finish_reason is not None:
            del self._client_of[delta.request_id]
        cached_tokens = None if first is None else first.cached_tokens
        self._events.after(self._shape.network_ns, lambda: client.receive(self._number, delta, cached_tokens))

    def _report(self, report: LoadReport) -> None:
        at_ns = self._events.now_ns + self._shape.report_ns
        for client in self.clients:
            client.reports[self._number].append((at_ns, report))
