"""Several replicas behind several gateways in virtual time: real schedulers, real predictions, and the real choice.

    FleetGateway    a client's `ReplicaSet` with all its state; sends `Submit`, receives `Load` and `Deltas`
       |  ^         messages take `network_ns`, and reports of the load `report_ns`
       v  |
    FleetWorker     a scheduler with a KV cache and a wait predictor of its own; its steps take a device's time

Nothing runs between two events. Equal arguments give equal results.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from engine.config import SchedulerConfig
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.memory.prefix_journal import PrefixJournal
from engine.request import PREMIUM, STANDARD, Request, SamplingParams, TokenDelta
from engine.runtime.submission import Submission
from engine.runtime.wait_prediction import LoadReport, WaitPredictor
from engine.sampling_defaults import NO_DEFAULTS
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.scheduling.cost import H200_LLAMA_8B, CostCoefficients, StepCostModel, StepWork, step_work
from engine.scheduling.plan import StepPlan
from engine.scheduling.step_slowdown import StepSlowdown
from engine.simulation.device import NOISE
from engine.simulation.driver import make_request
from engine.simulation.fleet_traffic import ANSWER_TOKEN, VOCAB_SIZE, Session
from engine.workers.messages import Deltas, Load, ModelFacts, Prefixes, Ready, Submit, ToWorker, WatchPrefixes
from engine.workers.prefix_events import PUBLISH_SECONDS, PrefixPublisher
from engine.workers.replica_choice import RoutingPolicy
from engine.workers.replicas import Replica, ReplicaSet

MODEL = "m"
MAX_MODEL_LEN = 16_384
_PUBLISH_NS = round(PUBLISH_SECONDS * 1e9)
DEVICE = CostCoefficients(
    *[
        4 * value
        for value in (
            H200_LLAMA_8B.step_ns,
            H200_LLAMA_8B.token_ns,
            H200_LLAMA_8B.context_token_ns,
            H200_LLAMA_8B.pair_ns,
        )
    ]
)
"""Llama 3.1 8B on a device with a quarter of an H200's rates: 16 ms a step, 10,000 tokens of prefill a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    """`speeds`: step times of each replica relative to `DEVICE`. `num_blocks`: of each replica's KV memory.

    `report_ns`: the age of reports of the load, and of prefix events when they arrive. `events`: replicas say which
    prefix blocks they hold; else gateways go by what they have sent.
    """

    speeds: tuple[float, ...]
    gateways: int = 1
    num_blocks: int = 4096
    report_ns: int = 2_000_000
    network_ns: int = 200_000
    max_running: int = 64
    step_tokens: int = 1024
    events: bool = True


class Served(NamedTuple):
    """A request that has ended. Times are virtual: `ttft_ns` from its arrival at a gateway to its first token there,
    `token_ns` the mean from one token to the next."""

    service_class: str
    replica: int
    at_ns: int
    ttft_ns: int
    token_ns: int
    prompt_tokens: int
    cached_tokens: int


class EventQueue:
    """Callbacks in order of virtual time, and of scheduling where times are equal."""

    def __init__(self) -> None:
        self.now_ns = 0
        self._numbers = itertools.count()
        self._events: list[tuple[int, int, Callable[[], None]]] = []

    def after(self, delay_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ns + delay_ns, next(self._numbers), action))

    def run(self) -> None:
        """Until no event is left."""
        while self._events:
            self.now_ns, _, action = heapq.heappop(self._events)
            action()


class FleetWorker:
    """A replica: steps follow one another while there is work."""

    def __init__(self, number: int, shape: FleetShape, events: EventQueue, random: Random) -> None:
        config = SchedulerConfig(
            max_running=shape.max_running,
            step_tokens=shape.step_tokens,
            chunk_tokens=shape.step_tokens,
            classes=(PREMIUM, STANDARD),
        )
        self.pool = BlockPool(shape.num_blocks)
        cost_model = StepCostModel.from_coefficients(DEVICE)
        self.scheduler = Scheduler(config, KVCacheManager(self.pool), MAX_MODEL_LEN, cost_model)
        self._pace = StepSlowdown()
        self.predictor = WaitPredictor(self.scheduler, self._pace)
        self.clients: list[FleetGateway] = []
        self._number = number
        self._speed = shape.speeds[number]
        self._shape = shape
        self._events = events
        self._random = random
        self._truth = StepCostModel.from_coefficients(DEVICE)
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
            max_model_len=MAX_MODEL_LEN,
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
        noise = self._random.uniform(1 - NOISE, 1 + NOISE)
        elapsed_ns = int(self._truth.predict_ns(_work_of(plan)) * self._speed * noise)
        self._events.after(elapsed_ns, lambda: self._complete(plan, now_ns, elapsed_ns))

    def _complete(self, plan: StepPlan, launched_ns: int, elapsed_ns: int) -> None:
        now_ns = self._events.now_ns
        firsts = {row.request.id: row.request for row in plan.rows if row.samples and not row.request.output_tokens}
        result = StepResult(tuple(RowResult(ANSWER_TOKEN if row.samples else None) for row in plan.rows))
        deltas = self.scheduler.commit(plan, result, elapsed_ns=elapsed_ns)
        predicted_ns = self.scheduler.cost_model.predict_ns(_work_of(plan))
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

    def watch(self, client: "FleetGateway") -> None:
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


@dataclass(slots=True)
class _InProgress:
    session: Session
    turn: int
    tokens: tuple[int, ...]
    at_ns: int
    replica: int = -1
    ttft_ns: int = 0
    cached_tokens: int = 0


class FleetGateway:
    """A gateway's view of all replicas, and its choice. Reports take effect when they have arrived, at the next
    choice."""

    def __init__(self, number: int, policy: RoutingPolicy, fleet: "Fleet") -> None:
        self.set = ReplicaSet(policy, clock=lambda: 0.0)  # heartbeats are not simulated
        self.reports: list[deque[tuple[int, LoadReport]]] = []
        self.in_progress: dict[str, _InProgress] = {}
        self._number = number
        self._fleet = fleet
        self._requests = itertools.count()

    def connect(self, worker: FleetWorker) -> None:
        """A worker is ready."""
        number = len(self.reports)
        self.reports.append(deque())
        replica = Replica(f"w{number}", self.set, lambda message: self._send(number, message))
        self.set.replicas.append(replica)
        replica.on_ready(Ready([worker.facts()], {}, {MODEL: worker.scheduler.stats(0)}))

    def ask(self, session: Session, turn: int, history: tuple[int, ...]) -> None:
        """A turn of a session arrives here."""
        self._take_in()
        tokens = (*history, *session.turns[turn].tokens)
        request_id = f"g{self._number}.{next(self._requests)}"
        self.in_progress[request_id] = _InProgress(session, turn, tokens, self._fleet.events.now_ns)
        params = SamplingParams(max_tokens=session.turns[turn].answer_tokens, ignore_eos=True)
        submission = Submission(
            (request_id,),
            (0,),
            tokens,
            len(tokens),
            params,
            session.turns[turn].answer_tokens,
            session.service_class,
            session.tenant,
            session.tenant.encode(),
        )
        self.set.submit(MODEL, [submission], _ignore, _ignore)

    def receive(self, number: int, delta: TokenDelta, cached_tokens: int | None) -> None:
        """A first or a last token."""
        each, now_ns = self.in_progress[delta.request_id], self._fleet.events.now_ns
        if cached_tokens is not None:
            each.ttft_ns = now_ns - each.at_ns
            each.cached_tokens = cached_tokens
        self.set.replicas[number].on_message(Deltas([delta]))
        if delta.finish_reason is None:
            return
        del self.in_progress[delta.request_id]
        self._fleet.on_served(each, now_ns)

    def learn(self, number: int, message: Prefixes) -> None:
        """A prefix event."""
        self.set.replicas[number].on_message(message)

    def _send(self, number: int, message: ToWorker) -> bool:
        if isinstance(message, WatchPrefixes) and self._fleet.shape.events:
            self._fleet.workers[number].watch(self)
        if isinstance(message, Submit):
            worker, fleet = self._fleet.workers[number], self._fleet
            for submission in message.submissions:
                self.in_progress[submission.request_ids[0]].replica = number
                fleet.events.after(fleet.shape.network_ns, _submitting(worker, self._number, submission))
        return True

    def _take_in(self) -> None:
        """The reports that have arrived. Of several only the last one's load matters."""
        now_ns = self._fleet.events.now_ns
        for replica, reports in zip(self.set.replicas, self.reports, strict=True):
            taken_in: list[str] = []
            last: LoadReport | None = None
            while reports and reports[0][0] <= now_ns:
                last = reports.popleft()[1]
                taken_in += last.taken_in
            if last is not None:
                replica.on_message(Load(MODEL, last._replace(taken_in=tuple(taken_in))))


@dataclass(slots=True)
class Fleet:
    """One run: `play` returns all requests that were served, in order of their ends."""

    shape: FleetShape
    policy: Callable[[Random], RoutingPolicy]
    seed: int
    events: EventQueue = field(init=False, default_factory=EventQueue)
    workers: list[FleetWorker] = field(init=False)
    gateways: list[FleetGateway] = field(init=False)
    served: list[Served] = field(init=False, default_factory=list)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(f"balancer {self.seed}")
        self.workers = [
            FleetWorker(number, self.shape, self.events, Random(f"device {number} {self.seed}"))
            for number in range(len(self.shape.speeds))
        ]
        self.gateways = [
            FleetGateway(number, self.policy(Random(f"policy {number} {self.seed}")), self)
            for number in range(self.shape.gateways)
        ]
        for worker in self.workers:
            worker.clients = self.gateways
            for gateway in self.gateways:
                gateway.connect(worker)

    def play(self, sessions: Sequence[Session]) -> list[Served]:
        """Serve all turns of all sessions. Each arrives at a gateway that is drawn at random."""
        for session in sessions:
            self._ask(session, 0, session.system, session.at_ns)
        self.events.run()
        for gateway in self.gateways:
            assert not gateway.in_progress, "requests have no end"
            gateway.set.check()
        return self.served

    def on_served(self, each: _InProgress, now_ns: int) -> None:
        """A request has ended: its session's next turn follows."""
        session, turn = each.session, each.turn
        self.served.append(
            Served(
                session.service_class.name,
                each.replica,
                each.at_ns,
                each.ttft_ns,
                (now_ns - each.at_ns - each.ttft_ns) // max(session.turns[turn].answer_tokens - 1, 1),
                len(each.tokens),
                each.cached_tokens,
            )
        )
        if turn + 1 < len(session.turns):
            history = (*each.tokens, *(ANSWER_TOKEN,) * session.turns[turn].answer_tokens)
            if len(history) + len(session.turns[turn + 1].tokens) < MAX_MODEL_LEN // 2:
                self._ask(session, turn + 1, history, session.turns[turn + 1].think_ns)

    def _ask(self, session: Session, turn: int, history: tuple[int, ...], delay_ns: int) -> None:
        gateway = self._random.choice(self.gateways)
        self.events.after(delay_ns, lambda: gateway.ask(session, turn, history))


def _submitting(worker: FleetWorker, client: int, submission: Submission) -> Callable[[], None]:
    return lambda: worker.submit(client, submission)


def _work_of(plan: StepPlan) -> StepWork:
    return step_work([row.start for row in plan.rows], [row.tokens for row in plan.rows])


def _ignore(_: object) -> None:
    """Nothing is read."""
