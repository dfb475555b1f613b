"""How busy the models are, as routing sees it."""

from dataclasses import dataclass
from typing import Protocol

from engine.request import ServiceClass


class PredictedWait(Protocol):
    """Nanoseconds."""

    @property
    def first_token_ns(self) -> int: ...


class LoadSource(Protocol):
    """What knows of queues: the engine of this process, or whatever stands for several."""

    def queue_depth(self, model: str) -> int:
        """Requests that wait."""
        ...

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> PredictedWait: ...


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Requests in a model's queue, of all classes, and how long a short one would wait for its first token if it came
    now."""

    queue_depth: int
    first_token_ns: int


class Replicas:
    """The load of each model, at this moment."""

    def __init__(self, source: LoadSource) -> None:
        self._source = source

    def load(self, model: str, service_class: ServiceClass) -> ModelLoad:
        wait = self._source.predicted_wait(model, service_class, 1)
        return ModelLoad(self._source.queue_depth(model), wait.first_token_ns)
