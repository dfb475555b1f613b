"""An engine whose models are computed by workers, with the interface of `Engine`."""

import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from engine.config import EngineConfig
from engine.errors import EngineUnavailable
from engine.request import ServiceClass
from engine.runtime.core import EngineHealth
from engine.runtime.engine_call import EngineCall
from engine.runtime.expected_queue import PredictedWait
from engine.runtime.loaded_model import ServedModel
from engine.runtime.output_stream import OutputStream
from engine.runtime.reservation import Reservation
from engine.runtime.streams import OutputDispatchers
from engine.runtime.submission import Submitter, choices_of
from engine.scheduling.stats import SchedulerStats
from engine.workers.client_models import served_model, text_processors
from engine.workers.fleet import Fleet
from engine.workers.membership import Membership
from engine.workers.messages import ModelFacts
from engine.workers.remote_link import RemoteLink, parse_address
from engine.workers.replica_choice import RoutingName, routing_policy
from engine.workers.replicas import Replica, ReplicaSet
from engine.workers.sources import Member, parse_source
from engine.workers.worker_handle import WorkerHandle

logger = logging.getLogger(__name__)

READY_SECONDS = 120.0
"""Time that the first worker of each model has to become ready at the start."""


class ReplicaEngine:
    """Models on workers. The gateway has their tokenizers, and learns the rest from the workers."""

    def __init__(
        self,
        paths: Mapping[str, Path],
        fleets: Mapping[str, Sequence[str]],
        config: EngineConfig,
        context: ssl.SSLContext | None,
        *,
        routing: RoutingName = "predicted",
        ready_seconds: float = READY_SECONDS,
    ) -> None:
        """Connects to the workers, and waits until each model has one that is ready. `paths`: the files of each model,
        for its text. `fleets`: the sources of each model's workers, in the forms of `parse_source`. `context` None:
        without TLS, and for workers on loopback alone. `routing`: how a worker is chosen.

        Raises:
            ValueError: a source has another form.
            UnsupportedCheckpoint: as `text_processors`.
            EngineUnavailable: a model has no worker in time.
        """
        self.set = ReplicaSet(routing_policy(routing))
        self._submitter = Submitter(config.salt_key)
        self._dispatchers = OutputDispatchers()
        self._context = context
        self._step_seconds = config.step_timeout_seconds
        self._refused: set[Member] = set()
        self._membership = Membership(self.set, self._connect)
        self._fleet = Fleet(
            [parse_source(each) for each in sorted({each for some in fleets.values() for each in some})]
        )
        texts = text_processors(paths, config)
        self._fleet.read_all()
        self._membership.update(self._members())
        if not self._fleet.is_static:
            self._fleet.watch(self._membership.keep_reaping(self._members))
        try:
            facts = self._await_facts(list(fleets), ready_seconds)
        except BaseException:
            self.close()
            raise
        self.models: Mapping[str, ServedModel] = MappingProxyType(
            {name: served_model(facts[name], texts[name]) for name in fleets}
        )

    @property
    def hardware(self) -> Mapping[str, str | int | float]:
        """Of the workers; keys begin with their address."""
        return {
            f"{replica.name} {key}": value for replica in self.set.replicas for key, value in replica.hardware.items()
        }

    @property
    def ready(self) -> bool:
        """Whether each model has a worker that takes requests."""
        with self.set.lock:
            return all(any(replica.takes(name) for replica in self.set.replicas) for name in self.models)

    @property
    def health(self) -> EngineHealth:
        """Of all workers together: alive while each model has one, and the age of the oldest step."""
        with self.set.lock:
            each = [replica.health for replica in self.set.replicas]
            return EngineHealth(
                alive=self.ready,
                stuck_steps_total=sum(health.stuck_steps_total for health in each),
                step_age_seconds=max((health.step_age_seconds for health in each), default=0.0),
                restarts_total=self._membership.restarts_total,
                replays_total=self.set.former_replays
                + sum(replica.requests.replays_total for replica in self.set.replicas),
            )

    def start(self) -> None:
        """No effect: the connections are made. Idempotent."""

    def close(self) -> None:
        """Abort running requests and close the connections. Idempotent."""
        self.set.close("the engine stopped while the request was running")
        self._fleet.close()
        self._membership.close()

    def __enter__(self) -> "ReplicaEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> Mapping[str, SchedulerStats]:
        """The sums over the workers of each model, at most a heartbeat old."""
        with self.set.lock:
            connected = [replica for replica in self.set.replicas if replica.requests.connected]
            stats = {name: [each.stats[name] for each in connected if name in each.stats] for name in self.models}
        return {name: _sum(some) for name, some in stats.items() if some}

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> PredictedWait:
        """As `Engine.predicted_wait`, at the worker with the shortest wait."""
        return self.set.predicted_wait(model, service_class.name, prompt_tokens)

    def queue_depth(self, model: str) -> int:
        """As `Engine.queue_depth`, of the worker with the shortest queue."""
        return self.set.queue_depth(model)

    def reserve(self, model: str, service_class: ServiceClass) -> Reservation:
        """As `Engine.reserve`."""
        return self.set.reserve(model, service_class.name)

    def adapter_slots(self, model: str) -> int:
        """As `Engine.adapter_slots`, of one worker."""
        return self.models[model].adapter_slots

    def reservations(self) -> Mapping[str, int]:
        """As `Engine.reservations`."""
        with self.set.lock:
            return {
                name: sum(each.queues[name].reservations for each in self.set.replicas if name in each.queues)
                for name in self.models
            }

    def submit(self, model: str, call: EngineCall) -> OutputStream:
        """As `Engine.submit`. A request outlives the loss of its worker.

        Raises, when the stream is read, in addition:
            EngineUnavailable: no worker takes requests.
        """
        served = self.models[model]
        submissions = self._submitter.submissions(served, call)
        handle = WorkerHandle(self.set, model, submissions, self._dispatchers.current, call.reservation)
        return OutputStream(choices_of(served, call.prompts, submissions), handle, call.on_abort)

    def _members(self) -> list[Member]:
        """The workers of the fleet that may be connected to."""
        members = self._fleet.members()
        if self._context is not None:
            return list(members)
        exposed = {each for each in members if not parse_address(each.address).is_local}
        for member in exposed - self._refused:
            logger.error("the worker %s is on another machine, and there is no TLS: it is not used", member.address)
        self._refused = exposed
        return list(members - exposed)

    def _connect(self, member: Member, replica: Replica) -> RemoteLink:
        address = parse_address(member.address)
        return RemoteLink(
            address, self._context, replica, step_seconds=self._step_seconds, server_name=member.server_name
        )

    def _await_facts(self, models: Sequence[str], seconds: float) -> dict[str, ModelFacts]:
        deadline = time.monotonic() + seconds
        with self.set.changed:
            while True:
                facts = {name: self.set.facts_of(name) for name in models}
                known = {name: each for name, each in facts.items() if each is not None}
                if len(known) == len(models):
                    return known
                left = deadline - time.monotonic()
                if left <= 0.0 or not self.set.changed.wait(left):
                    missing = ", ".join(name for name, each in facts.items() if each is None)
                    raise EngineUnavailable(f"no worker of {missing} is ready after {seconds:g} s")


T = TypeVar("T")


def _sum(stats: Sequence[SchedulerStats]) -> SchedulerStats:
    """The stats of one model's workers as those of one."""
    first, *others = stats
    for other in others:
        first = _add_stats(first, other)
    return first


def _add_stats(mine: T, other: Any) -> T:
    """Sums of numbers, field by field; of ages the oldest; of means the mean. Anything else is the first one's."""
    assert is_dataclass(mine)
    changed: dict[str, Any] = {}
    for field in fields(mine):
        a, b = getattr(mine, field.name), getattr(other, field.name)
        if isinstance(a, float):
            changed[field.name] = (a + b) / 2
        elif isinstance(a, int) and not isinstance(a, bool):
            changed[field.name] = max(a, b) if field.name.endswith("age_ns") else a + b
        elif isinstance(a, tuple) and len(a) == len(b):
            changed[field.name] = tuple(
                x + y if isinstance(x, int) else _add_stats(x, y) if is_dataclass(x) else x
                for x, y in zip(a, b, strict=True)
            )
        elif is_dataclass(a) and type(a) is type(b):
            changed[field.name] = _add_stats(a, b)
    return replace(mine, **changed)  # type: ignore[type-var]
