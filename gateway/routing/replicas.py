"""Load of the models, as routing sees it."""

from dataclasses import dataclass
from typing import Protocol

from engine.request import ServiceClass


class PredictedWait(Protocol):
    """Predicted waiting time of a request."""

    @property
    def first_token_ns(self) -> int:
        """Predicted time to the first token, in nanoseconds."""


class LoadSource(Protocol):
    """Source of queue depths and predicted waits: the engine of this process, or a stand-in for several."""

    def queue_depth(self, model: str) -> int:
        """Number of waiting requests of a model, over all classes."""
        ...

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> PredictedWait:
        """Predicted wait of a request with `prompt_tokens` tokens that arrives now."""


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """Load of one model. `queue_depth`: waiting requests of all classes. `first_token_ns`: predicted time to the first
    token of a one-token prompt that arrives now."""

    queue_depth: int
    first_token_ns: int


class Replicas:
    """Current load of each model."""

    def __init__(self, source: LoadSource) -> None:
        self._source = source

    def load(self, model: str, service_class: ServiceClass) -> ModelLoad:
        """The load of a model now, for a request of this class."""
        wait = self._source.predicted_wait(model, service_class, 1)
        return ModelLoad(self._source.queue_depth(model), wait.first_token_ns)
