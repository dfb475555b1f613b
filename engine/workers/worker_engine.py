"""An engine whose models are computed by a process of their own, with the interface of `Engine`."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

from engine.config import EngineConfig, StatedSizes
from engine.errors import EngineError, RankLost
from engine.memory.kv_memory import InsufficientMemory
from engine.models.config import UnsupportedCheckpoint
from engine.request import ServiceClass
from engine.runtime.core import EngineHealth
from engine.runtime.engine_call import EngineCall
from engine.runtime.expected_queue import PredictedWait
from engine.runtime.loaded_model import ServedModel
from engine.runtime.model_loading import LoadProgress
from engine.runtime.output_stream import OutputStream
from engine.runtime.reservation import Reservation
from engine.runtime.streams import OutputDispatchers
from engine.runtime.submission import Submitter, choices_of
from engine.scheduling.stats import SchedulerStats
from engine.workers.client_models import served_model, text_processors
from engine.workers.messages import (
    Aborted,
    Accepted,
    Deltas,
    FromWorker,
    Load,
    ModelFacts,
    Ready,
    Refused,
    Start,
    Stats,
)
from engine.workers.remote_queue import RemoteQueue
from engine.workers.supervisor import PROCESS, LoadFailed, Supervisor
from engine.workers.worker_handle import WorkerHandle
from engine.workers.worker_requests import WorkerRequests
from kernels.dispatch import DeviceUnavailable

logger = logging.getLogger(__name__)

_LOAD_ERRORS = {
    each.__name__: each for each in (UnsupportedCheckpoint, InsufficientMemory, DeviceUnavailable, RankLost, ValueError)
}
_IDLE = EngineHealth(alive=False, stuck_steps_total=0, step_age_seconds=0.0)


class WorkerEngine:
    """Loaded models in a child process. Where that ends, it is started again, and the requests that it had are
    submitted to the next one with the tokens that they have."""

    def __init__(
        self,
        models: Mapping[str, Path | str],
        config: EngineConfig,
        progress: LoadProgress | None = None,
        *,
        sizes: StatedSizes | None = None,
        module: str = PROCESS,
    ) -> None:
        """Starts the process, and waits until its models are loaded: see `Engine.load`, also for the errors. `sizes`:
        of a step, which the process completes by its device; None: those of the config.

        Raises, in addition:
            ValueError: the completed sizes contradict one another.
        """
        self._paths = {name: Path(path) for name, path in models.items()}
        self._config = config
        self._progress = progress
        self._submitter = Submitter(config.salt_key)
        self._dispatchers = OutputDispatchers()
        self._queues: dict[str, RemoteQueue] = {}
        self._facts: dict[str, ModelFacts] = {}
        self._stats: Mapping[str, SchedulerStats] = {}
        self._health = _IDLE
        self._cancelled: Exception | None = None
        self.hardware: Mapping[str, str | int | float] = {}
        """Results and choices of the start-up probe."""
        level = logging.getLogger("engine").getEffectiveLevel()
        self.supervisor = Supervisor(Start(self._paths, config, level, sizes), self, module)
        self.requests = WorkerRequests(self.supervisor.send, self._queues)
        try:
            self.supervisor.start()
        except LoadFailed as error:
            if self._cancelled is not None:
                raise self._cancelled from None
            raise _LOAD_ERRORS.get(error.kind, EngineError)(str(error)) from error
        texts = text_processors(self._paths, config)
        self.models: Mapping[str, ServedModel] = MappingProxyType(
            {name: served_model(self._facts[name], texts[name]) for name in models}
        )

    @classmethod
    def load(
        cls, models: Mapping[str, Path | str], config: EngineConfig | None = None, progress: LoadProgress | None = None
    ) -> Self:
        """As `Engine.load`."""
        return cls(models, config or EngineConfig(), progress)

    def start(self) -> None:
        """No effect: the process runs. Idempotent."""

    def close(self) -> None:
        """Abort running requests and end the process. Idempotent."""
        self.requests.close("the engine stopped while the request was running")
        self.supervisor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ready(self) -> bool:
        """Whether a process is running and computes."""
        return self._health.alive

    @property
    def health(self) -> EngineHealth:
        """The state of the process's engine thread, for metrics."""
        restarts_total, replays_total = self.supervisor.restarts_total, self.requests.replays_total
        return replace(self._health, restarts_total=restarts_total, replays_total=replays_total)

    def stats(self) -> Mapping[str, SchedulerStats]:
        """The state and counters of each model's scheduler, at most a heartbeat old. Counters restart with the
        process."""
        return self._stats

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> PredictedWait:
        """As `Engine.predicted_wait`."""
        return self._queues[model].predicted_wait(service_class.name, prompt_tokens)

    def queue_depth(self, model: str) -> int:
        """As `Engine.queue_depth`."""
        return self._queues[model].queue_depth

    def reserve(self, model: str, service_class: ServiceClass) -> Reservation:
        """As `Engine.reserve`."""
        return self._queues[model].reserve(service_class.name)

    def adapter_slots(self, model: str) -> int:
        """As `Engine.adapter_slots`."""
        return self.models[model].adapter_slots

    def reservations(self) -> Mapping[str, int]:
        """As `Engine.reservations`."""
        return {name: queue.reservations for name, queue in self._queues.items()}

    def submit(self, model: str, call: EngineCall) -> OutputStream:
        """As `Engine.submit`. A request outlives one end of the process.

        Raises, when the stream is read, in addition:
            EngineUnavailable: the process is being started again.
        """
        served = self.models[model]
        submissions = self._submitter.submissions(served, call)
        handle = WorkerHandle(self.requests, model, submissions, self._dispatchers.current, call.reservation)
        return OutputStream(choices_of(served, call.prompts, submissions), handle, call.on_abort)

    def on_loading(self, model: str, done: int, total: int) -> None:
        """See `WorkerEvents`."""
        if self._progress is not None:
            try:
                self._progress(model, done, total)
            except Exception as error:
                self._cancelled = error
                raise LoadFailed(type(error).__name__, "the start was cancelled") from error

    def on_ready(self, ready: Ready) -> None:
        """See `WorkerEvents`."""
        self._progress = None
        for facts in ready.models:
            known = self._facts.setdefault(facts.name, facts)
            if known.version != facts.version:
                raise EngineError(f"the files of {facts.name} have changed: restart the gateway")
            if facts.name in self._queues:
                self._queues[facts.name].on_report(facts.load)
            else:
                self._queues[facts.name] = RemoteQueue(facts.ranks, facts.load)
        self.hardware, self._stats = ready.hardware, ready.stats
        self._health = EngineHealth(alive=True, stuck_steps_total=0, step_age_seconds=0.0)
        self.requests.connect()

    def on_message(self, message: FromWorker) -> None:
        """See `WorkerEvents`."""
        match message:
            case Deltas() | Accepted() | Refused() | Aborted():
                self.requests.receive(message)
            case Load():
                self._queues[message.model].on_report(message.report)
            case Stats():
                self._stats, self._health = message.models, message.health

    def on_ended(self) -> None:
        """See `WorkerEvents`."""
        self._health = _IDLE
        self.requests.disconnect()
        if kept := len(self.requests):
            logger.warning("%d requests wait for the next engine process", kept)

    def on_start_failed(self) -> None:
        """See `WorkerEvents`."""
        self.requests.fail_all("the engine process has ended and could not be started again")

    def on_given_up(self, reason: str) -> None:
        """See `WorkerEvents`."""
        self._health = _IDLE
        self.requests.close(reason)
