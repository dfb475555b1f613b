"""The replicas of models: which of them computes a request, and who gets it when that one is lost."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from engine.config import BLOCK_TOKENS
from engine.errors import EngineError, EngineUnavailable
from engine.request import Usage
from engine.runtime.core import EngineHealth
from engine.runtime.delta_dispatcher import Sink
from engine.runtime.expected_queue import PredictedWait
from engine.runtime.reservation import Reservation
from engine.runtime.submission import Submission
from engine.scheduling.stats import SchedulerStats
from engine.workers.messages import (
    Aborted,
    Accepted,
    Deltas,
    Draining,
    FromWorker,
    Load,
    ModelFacts,
    Prefixes,
    Ready,
    Refused,
    Stats,
    ToWorker,
    WatchPrefixes,
)
from engine.workers.prefix_index import KnownPrefixes, PromptPrefix
from engine.workers.remote_queue import RemoteQueue
from engine.workers.replica_choice import ReplicaView, RoutingPolicy, routing_policy
from engine.workers.replica_health import ReplicaHealth
from engine.workers.retry_budget import RetryBudget
from engine.workers.worker_requests import CallRecord, OnAnswer, OnReleased, Outstanding, WorkerRequests

logger = logging.getLogger(__name__)

_DOWN = EngineHealth(alive=False, stuck_steps_total=0, step_age_seconds=0.0)


class Replica:
    """One worker as the router sees it. Implements `WorkerEvents`; the set's lock guards it."""

    def __init__(self, name: str, replicas: "ReplicaSet", send: Callable[[ToWorker], bool]) -> None:
        self.name = name
        self.facts: dict[str, ModelFacts] = {}
        self.queues: dict[str, RemoteQueue] = {}
        self.prefixes: dict[str, KnownPrefixes] = {}
        self.requests = WorkerRequests(send, self.queues, replicas.lock)
        self.stats: Mapping[str, SchedulerStats] = {}
        self.health = _DOWN
        self.hardware: Mapping[str, str | int | float] = {}
        self.draining = False
        self.listed = True
        """Whether it is in the fleet. One that is not gets no new requests."""
        self._watch = ReplicaHealth(replicas.clock())
        self._replicas = replicas
        self._send = send

    def takes(self, model: str) -> bool:
        """Whether it computes new requests of the model."""
        return self.listed and self.requests.connected and not self.draining and model in self.facts

    def is_suspect(self, model: str) -> bool:
        """Whether it is not heard of, or makes no progress with the model."""
        return self._watch.is_suspect(model, self._replicas.clock())

    def load(self, model: str) -> int:
        """Requests in progress: those of all clients as of its last report and what this one has sent since, and at
        least those of this client, of which it knows all."""
        return max(len(self.requests), self.queues[model].requests)

    def view(self, model: str, submission: Submission, prompt: PromptPrefix) -> ReplicaView:
        """As a policy sees it, for a submission with this prompt."""
        queue, known, ranks = self.queues[model], self.prefixes[model], self.facts[model].ranks
        service_class, prompt_tokens = submission.service_class.name, submission.prompt_tokens
        ahead = [known.unanswered.cached_tokens_of[name] for name in sorted(ranks, key=ranks.__getitem__)]
        cached_tokens = max(min(known.cached_tokens(prompt), prompt_tokens - 1), 0)
        wait_ns = left_ns = queue.first_token_ns(service_class, prompt_tokens, 0, ahead)
        if cached_tokens:
            left_ns = min(wait_ns, queue.first_token_ns(service_class, prompt_tokens, cached_tokens, ahead))
        return ReplicaView(wait_ns, wait_ns - left_ns, cached_tokens, self.load(model))

    def check(self) -> None:
        """Assert the invariants."""
        self.requests.check()
        for known in self.prefixes.values():
            known.unanswered.check()

    def on_loading(self, model: str, done: int, total: int) -> None:
        """See `WorkerEvents`."""

    def on_ready(self, ready: Ready) -> None:
        """See `WorkerEvents`."""
        with self._replicas.lock:
            self.facts = {facts.name: facts for facts in ready.models if self._replicas.accepts(self, facts)}
            for facts in self.facts.values():
                if facts.name in self.queues:
                    self.queues[facts.name].on_report(facts.load)
                else:
                    self.queues[facts.name] = RemoteQueue(facts.ranks, facts.load)
                stats = ready.stats[facts.name]
                self.prefixes[facts.name] = KnownPrefixes(BLOCK_TOKENS * stats.num_blocks)
            self.stats, self.hardware = ready.stats, ready.hardware
            self.health = EngineHealth(alive=True, stuck_steps_total=0, step_age_seconds=0.0)
            self.draining = False
            self._watch = ReplicaHealth(self._replicas.clock())
            self.requests.connect()
            logger.info("the worker %s is ready with %s", self.name, ", ".join(self.facts))
            self._replicas.on_ready(self)
        for facts in self.facts.values():
            if facts.prefix_cache:
                self._send(WatchPrefixes(facts.name))

    def on_message(self, message: FromWorker) -> None:
        """See `WorkerEvents`."""
        self._watch.on_message(self._replicas.clock())
        match message:
            case Accepted():
                self.requests.receive(message)
            case Deltas() | Refused() | Aborted():
                self.requests.receive(message)
                self._drop_answered(message)
            case Prefixes():
                self._on_prefixes(message)
            case Load():
                if message.model in self.queues:
                    self.queues[message.model].on_report(message.report)
            case Stats():
                self.stats, self.health = message.models, message.health
                self._watch.on_stats(message.models, self._replicas.clock())
            case Draining():
                self.draining = True
                logger.info("the worker %s drains", self.name)

    def _drop_answered(self, message: Deltas | Refused | Aborted) -> None:
        """Requests with a token, and those that are over, are in the worker's cache or not at all."""
        with self._replicas.lock:
            for known in self.prefixes.values():
                if isinstance(message, Deltas):
                    for delta in message.deltas:
                        known.unanswered.drop(delta.request_id)
                else:
                    known.unanswered.retain(self.requests)

    def _on_prefixes(self, message: Prefixes) -> None:
        with self._replicas.lock:
            known = self.prefixes.get(message.model)
            is_lost = known is not None and not known.held.receive(message)
        if is_lost:
            logger.warning("prefix events of the worker %s are lost: all are asked for again", self.name)
            self._send(WatchPrefixes(message.model))

    def on_ended(self) -> None:
        """See `WorkerEvents`."""
        self.health = _DOWN
        with self._replicas.lock:
            self.prefixes = {}
        self.requests.disconnect()
        self._replicas.on_lost(self)

    def on_start_failed(self) -> None:
        """See `WorkerEvents`."""

    def on_given_up(self, reason: str) -> None:
        """See `WorkerEvents`. The requests of one that is not in the fleet wait for another worker."""
        self.health = _DOWN
        if self.listed or self._replicas.closed:
            self.requests.close(reason)


class ReplicaSet:
    """Chooses the worker of each call by a policy, from what the workers report and what was sent to them since.

    A call stays whole. Requests of a lost worker are submitted to the best of the others, or wait for the first that
    is ready. Has the methods of `WorkerRequests`. Thread-safe.
    """

    def __init__(
        self,
        policy: RoutingPolicy | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        retries: RetryBudget | None = None,
    ) -> None:
        """`policy` None: by predicted seconds. `clock`: in seconds. `retries` None: the default budget."""
        self.clock = clock
        self._retries = retries or RetryBudget()
        self._policy = policy or routing_policy("predicted")
        self.lock = threading.RLock()
        self.replicas: list[Replica] = []
        self.changed = threading.Condition(self.lock)
        """Notified when a replica becomes ready."""
        self._versions: dict[str, str] = {}
        self.closed = False
        self.former_replays = 0
        """Requests that removed replicas were given after others had them."""

    def __len__(self) -> int:
        return sum(len(replica.requests) for replica in self.replicas)

    def add(self, replica: Replica) -> None:
        """Another worker. Called with the lock held."""
        self.replicas = [*self.replicas, replica]  # readers without the lock have the former list

    def remove(self, gone: Collection[Replica]) -> None:
        """Forget disconnected workers without requests. Called with the lock held."""
        assert not any(len(replica.requests) for replica in gone), "a removed worker has requests"
        self.former_replays += sum(replica.requests.replays_total for replica in gone)
        self.replicas = [replica for replica in self.replicas if replica not in gone]

    def accepts(self, replica: Replica, facts: ModelFacts) -> bool:
        """Whether a replica's model has the same files as that of the others."""
        version = self._versions.setdefault(facts.name, facts.version)
        if version != facts.version:
            logger.error(
                "the worker %s has another version of %s (%s) than the others (%s): it is not used",
                replica.name,
                facts.name,
                facts.version,
                version,
            )
        return version == facts.version

    def facts_of(self, model: str) -> ModelFacts | None:
        """The model as a replica serves it; None while no one has been ready."""
        with self.lock:
            return next((each.facts[model] for each in self.replicas if model in each.facts), None)

    def choose(self, model: str, submission: Submission) -> Replica | None:
        """The replica whose first token of the prompt is expected the earliest; None: no one takes it."""
        return self._choose(model, submission, PromptPrefix(submission))

    def _choose(self, model: str, submission: Submission, prompt: PromptPrefix) -> Replica | None:
        with self.lock:
            takers = [replica for replica in self.replicas if replica.takes(model)]
            if not takers:
                return None
            takers = [replica for replica in takers if not replica.is_suspect(model)] or takers
            views = [replica.view(model, submission, prompt) for replica in takers]
            index = self._policy.choose(views, submission.prompt_tokens)
            chosen, cached_tokens = takers[index], views[index].cached_tokens
            chosen.prefixes[model].add(submission.request_ids, prompt, submission.service_class.name, cached_tokens)
            return chosen

    def submit(
        self,
        model: str,
        submissions: Sequence[Submission],
        sink: Sink,
        on_answer: OnAnswer,
        reservation: Reservation | None = None,
    ) -> CallRecord:
        """As `WorkerRequests.submit`, at the best replica."""
        prompt = PromptPrefix(submissions[0])  # before the lock, as it takes a millisecond for a long prompt
        with self.lock:
            if self.closed:
                raise EngineError("the engine is closed")
            chosen = self._choose(model, submissions[0], prompt)
            if chosen is None:
                raise EngineUnavailable(f"no worker serves {model} at the moment")
            if reservation is not None and not chosen.queues[model].holds(reservation):
                reservation.release()
                reservation = None
            self._retries.add(sum(len(each.request_ids) for each in submissions))
            return chosen.requests.submit(model, submissions, sink, on_answer, reservation)

    def pause(self, model: str, request_ids: Sequence[str]) -> None:
        """As `WorkerRequests.pause`."""
        with self.lock:
            for replica, held in self._by_holder(request_ids):
                replica.requests.pause(model, held)

    def resume(self, model: str, request_ids: Sequence[str]) -> None:
        """As `WorkerRequests.resume`."""
        with self.lock:
            for replica, held in self._by_holder(request_ids):
                replica.requests.resume(model, held)

    def abort(self, record: CallRecord, request_ids: Sequence[str], on_released: OnReleased) -> None:
        """As `WorkerRequests.abort`; `on_released` may be called once for each replica, with parts of the usages."""
        with self.lock:
            holders = self._by_holder(request_ids)
            held = {request_id for _, ids in holders for request_id in ids}
            for replica, ids in holders:
                replica.requests.abort(record, ids, on_released)
            ended: dict[str, Usage] = {
                each: record.usages[each] for each in request_ids if each not in held and each in record.usages
            }
        if ended:
            on_released(ended)

    def predicted_wait(self, model: str, service_class: str, prompt_tokens: int) -> PredictedWait:
        """The shortest of the replicas' waits."""
        queues = self._queues(model)
        waits = [queue.predicted_wait(service_class, prompt_tokens) for queue in queues]
        return min(waits, key=lambda wait: wait.first_token_ns, default=PredictedWait(0, 0))

    def queue_depth(self, model: str) -> int:
        """Requests that wait, of the replica with the shortest queue: the one that a new request finds."""
        return min((queue.queue_depth for queue in self._queues(model)), default=0)

    def reserve(self, model: str, service_class: str) -> Reservation:
        """A place at the replica with the shortest wait.

        Raises:
            EngineUnavailable: there is no replica.
        """
        with self.lock:
            queues = self._queues(model) or [each.queues[model] for each in self.replicas if model in each.queues]
            if not queues:
                raise EngineUnavailable(f"no worker serves {model} at the moment")
            queue = min(queues, key=lambda queue: queue.predicted_wait(service_class, 1).first_token_ns)
            return queue.reserve(service_class)

    def on_ready(self, replica: Replica) -> None:
        """A worker is ready: it gets what lost ones have left. Called with the lock held."""
        for other in self.replicas:
            if other is not replica and not other.requests.connected:
                self._move(other)
        self.changed.notify_all()

    def on_lost(self, replica: Replica) -> None:
        """A worker has ended: others get its requests, within the budget of retries where it did not drain."""
        with self.lock:
            if not replica.draining:
                self._end_beyond_budget(replica)
            self._move(replica)
            if kept := len(replica.requests):
                logger.warning("%d requests of %s wait for a worker", kept, replica.name)

    def _end_beyond_budget(self, lost: Replica) -> None:
        """End what may not be computed again. Higher classes go first and, of one class, streams that have begun:
        clients cannot repeat those."""
        by_urgency = sorted(lost.requests.items(), key=lambda item: _urgency(item[1]))
        ended = [request_id for request_id, _ in by_urgency if not self._retries.take()]
        if ended:
            logger.error("%d requests of %s end: the budget of retries is used up", len(ended), lost.name)
            lost.requests.fail(ended, "the worker is lost, and the budget of retries is used up")

    def close(self, reason: str) -> None:
        """End all requests."""
        with self.lock:
            self.closed = True
        for replica in self.replicas:
            replica.requests.close(reason)

    def check(self) -> None:
        """Assert the invariants."""
        for replica in self.replicas:
            replica.check()

    def _queues(self, model: str) -> list[RemoteQueue]:
        with self.lock:
            return [replica.queues[model] for replica in self.replicas if replica.takes(model)]

    def _by_holder(self, request_ids: Sequence[str]) -> list[tuple[Replica, list[str]]]:
        held = [(each, [id_ for id_ in request_ids if id_ in each.requests]) for each in self.replicas]
        return [(replica, ids) for replica, ids in held if ids]

    def _move(self, lost: Replica) -> None:
        for request_id, each in lost.requests.items():
            chosen = self._heir(each)
            if chosen is not None:
                chosen.requests.adopt(request_id, lost.requests.take(request_id))

    def _heir(self, each: Outstanding) -> Replica | None:
        return self.choose(each.record.model, each.remaining())


def _urgency(each: Outstanding) -> tuple[int, bool]:
    return each.submission.service_class.priority, not each.output
