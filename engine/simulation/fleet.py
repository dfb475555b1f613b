"""Several replicas behind several gateways in virtual time: real schedulers, real predictions, and the real choice.

    FleetGateway    a client's `ReplicaSet` with all its state; sends `Submit`, receives `Load` and `Deltas`, and
       |  ^         refuses what would wait too long; messages take `network_ns`, and reports of the load `report_ns`
       v  |
    FleetWorker     a scheduler with a KV cache and a wait predictor of its own; its steps take a device's time

Nothing runs between two events. Equal arguments give equal results.
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from engine.request import SamplingParams, TokenDelta
from engine.runtime.submission import Submission
from engine.runtime.wait_prediction import LoadReport
from engine.scheduling.wait_bound import is_admitted
from engine.simulation.fleet_shape import MODEL, EventQueue, FleetShape, RefusedRequest, Served
from engine.simulation.fleet_traffic import ANSWER_TOKEN, Session
from engine.simulation.fleet_worker import FleetWorker
from engine.workers.messages import Deltas, Load, Prefixes, Ready, Submit, ToWorker, WatchPrefixes
from engine.workers.replica_choice import RoutingPolicy
from engine.workers.replicas import Replica, ReplicaSet


@dataclass(slots=True)
class _InProgress:
    session: Session
    turn: int
    tokens: tuple[int, ...]
    at_ns: int
    replica: int = -1
    ttft_ns: int = 0
    cached_tokens: int = 0
    preemptions: int = 0


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
        if (refused := self._refusal(session, len(tokens))) is not None:
            self._fleet.on_refused(refused)
            return
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

    def _refusal(self, session: Session, prompt_tokens: int) -> RefusedRequest | None:
        """The refusal of a prompt that no replica takes, or that would wait past its class's bound."""
        name, now_ns = session.service_class.name, self._fleet.events.now_ns
        facts = self.set.facts_of(MODEL)
        if facts is not None and prompt_tokens >= facts.windows[name]:
            return RefusedRequest(name, session.tenant, now_ns, too_long=True)
        bound_ns = self._fleet.shape.max_wait_ns.get(name)
        if bound_ns is None:
            return None
        wait = self.set.predicted_wait(MODEL, name, prompt_tokens)
        is_short = is_admitted(wait.first_token_ns, wait.drain_ns, bound_ns)
        return None if is_short else RefusedRequest(name, session.tenant, now_ns)

    def receive(self, number: int, delta: TokenDelta, cached_tokens: int | None) -> None:
        """A first or a last token."""
        each, now_ns = self.in_progress[delta.request_id], self._fleet.events.now_ns
        if cached_tokens is not None:
            each.ttft_ns = now_ns - each.at_ns + self._fleet.shape.request_ns
            each.cached_tokens = cached_tokens
        self.set.replicas[number].on_message(Deltas([delta]))
        if delta.finish_reason is None:
            return
        del self.in_progress[delta.request_id]
        each.preemptions = 0 if delta.usage is None else delta.usage.preemptions
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
    refused: list[RefusedRequest] = field(init=False, default_factory=list)
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

    def play(self, sessions: Sequence[Session], until: Callable[[], bool] = lambda: False) -> list[Served]:
        """Serve all turns of all sessions, or as many as there are before `until` is true. Each arrives at a gateway
        that is drawn at random."""
        for session in sessions:
            self._ask(session, 0, session.system, session.at_ns)
        self.events.run(until)
        if until():
            return self.served
        for gateway in self.gateways:
            assert not gateway.in_progress, "requests have no end"
            gateway.set.check()
        return self.served

    def on_refused(self, refused: RefusedRequest) -> None:
        """A request is refused; its session ends."""
        self.refused.append(refused)

    def on_served(self, each: _InProgress, now_ns: int) -> None:
        """A request has ended: its session's next turn follows."""
        session, turn = each.session, each.turn
        engine_ttft_ns = each.ttft_ns - self.shape.request_ns
        self.served.append(
            Served(
                session.service_class.name,
                each.replica,
                each.at_ns,
                each.ttft_ns,
                (now_ns - each.at_ns - engine_ttft_ns) // max(session.turns[turn].answer_tokens - 1, 1),
                len(each.tokens),
                each.cached_tokens,
                session.tenant,
                session.turns[turn].answer_tokens,
                each.preemptions,
            )
        )
        if turn + 1 < len(session.turns):
            history = (*each.tokens, *(ANSWER_TOKEN,) * session.turns[turn].answer_tokens)
            if len(history) + len(session.turns[turn + 1].tokens) < self.shape.max_model_len // 2:
                self._ask(session, turn + 1, history, session.turns[turn + 1].think_ns)

    def _ask(self, session: Session, turn: int, history: tuple[int, ...], delay_ns: int) -> None:
        gateway = self._random.choice(self.gateways)
        self.events.after(delay_ns, lambda: gateway.ask(session, turn, history))


def _submitting(worker: FleetWorker, client: int, submission: Submission) -> Callable[[], None]:
    return lambda: worker.submit(client, submission)


def _ignore(_: object) -> None:
    """Nothing is read."""
