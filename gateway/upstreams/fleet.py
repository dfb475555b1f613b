"""One `EngineClient` of the local engine and the upstream models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from engine.request import ServiceClass
from engine.runtime.engine_call import EngineCall
from engine.runtime.reservation import Reservation
from engine.scheduling.stats import SchedulerStats
from gateway.generation.engine_client import EngineClient, OutputStream, PredictedWait, ServedModel
from gateway.telemetry.health import EngineHealth
from gateway.upstreams.model import UpstreamModel


class LocalEngine(EngineClient, Protocol):
    """The engine of this process."""

    @property
    def health(self) -> EngineHealth: ...


@dataclass(frozen=True, slots=True)
class NoThread:
    """Health without an engine thread."""

    alive: bool = True
    stuck_steps_total: int = 0
    step_age_seconds: float = 0.0
    restarts_total: int = 0
    replays_total: int = 0


class Fleet:
    """Passes each call to the model's engine or its server. `local`: None if all models are upstreams.

    It is ready when the local engine is: a server that is down makes no other model unready.
    """

    def __init__(self, local: LocalEngine | None, upstreams: Sequence[UpstreamModel]) -> None:
        self._local = local
        self._upstreams = {model.name: model for model in upstreams}
        models: dict[str, ServedModel] = {} if local is None else dict(local.models)
        self.models: Mapping[str, ServedModel] = MappingProxyType(models | self._upstreams)
        self._is_open = False

    @property
    def ready(self) -> bool:
        """Whether requests can be served."""
        return self._is_open if self._local is None else self._local.ready

    @property
    def health(self) -> EngineHealth:
        """Health of the local engine."""
        return NoThread() if self._local is None else self._local.health

    def start(self) -> None:
        """Start the local engine."""
        self._is_open = True
        if self._local is not None:
            self._local.start()

    def close(self) -> None:
        """Close the local engine."""
        self._is_open = False
        if self._local is not None:
            self._local.close()

    def stats(self) -> Mapping[str, SchedulerStats]:
        """The state of each model's queue."""
        local: Mapping[str, SchedulerStats] = {} if self._local is None else self._local.stats()
        return dict(local) | {name: model.stats() for name, model in self._upstreams.items()}

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> PredictedWait:
        """As `EngineClient`."""
        if (upstream := self._upstreams.get(model)) is not None:
            return upstream.predicted_wait(service_class)
        return self._engine().predicted_wait(model, service_class, prompt_tokens)

    def adapter_slots(self, model: str) -> int:
        """As `EngineClient`. Upstreams take no adapters."""
        return 0 if model in self._upstreams else self._engine().adapter_slots(model)

    def queue_depth(self, model: str) -> int:
        """As `EngineClient`."""
        if (upstream := self._upstreams.get(model)) is not None:
            return upstream.queue_depth
        return self._engine().queue_depth(model)

    def reserve(self, model: str, service_class: ServiceClass) -> Reservation:
        """As `EngineClient`. Raises: UpstreamUnavailable."""
        if (upstream := self._upstreams.get(model)) is not None:
            return upstream.reserve(service_class)
        return self._engine().reserve(model, service_class)

    def submit(self, model: str, call: EngineCall) -> OutputStream:
        """As `EngineClient`."""
        if (upstream := self._upstreams.get(model)) is not None:
            return upstream.submit(call)
        return self._engine().submit(model, call)

    def _engine(self) -> LocalEngine:
        if self._local is None:
            raise KeyError("no model is loaded in this process")
        return self._local
