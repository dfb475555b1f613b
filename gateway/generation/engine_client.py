"""The engine as the gateway uses it. `engine.engine.Engine` implements it."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from engine.request import ServiceClass, TextDelta
from engine.runtime.engine_call import EngineCall
from engine.runtime.model_details import ModelDetails
from engine.runtime.reservation import Reservation
from engine.sampling_defaults import SamplingDefaults
from engine.scheduling.stats import SchedulerStats
from engine.text.processor import TextProcessor


class ServedModel(Protocol):
    """A loaded model. `max_model_len` bounds prompt and answer together, in tokens; `created` is a Unix time."""

    @property
    def name(self) -> str: ...

    @property
    def text(self) -> TextProcessor: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def windows(self) -> Mapping[str, int]:
        """`max_model_len` for each service class, by its name."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def created(self) -> int: ...

    @property
    def version(self) -> str:
        """Identifies the weights, equally on every replica."""
        ...

    @property
    def sampling_defaults(self) -> SamplingDefaults:
        """The parameters of a request that does not state them."""
        ...

    @property
    def details(self) -> ModelDetails | None:
        """The model's files and memory; None: unknown."""
        ...


class PredictedWait(Protocol):
    """Nanoseconds until a new request's first token, and until all that wait now in its class have theirs."""

    @property
    def first_token_ns(self) -> int: ...

    @property
    def drain_ns(self) -> int: ...


class OutputStream(Protocol):
    """The deltas of one call. Leaving it aborts what has not been read to its end."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def next_batch(self) -> Sequence[TextDelta]:
        """The deltas that are ready, at least one; empty once all choices have ended."""
        ...

    def fail(self, error: Exception) -> None:
        """End the call at once: abort it, drop unread deltas, and have `next_batch` raise `error`."""
        ...


class EngineClient(Protocol):
    """Loaded models and the thread that runs them. `start` and `close` may block; both are idempotent."""

    @property
    def models(self) -> Mapping[str, ServedModel]: ...

    @property
    def ready(self) -> bool: ...

    def start(self) -> None: ...

    def close(self) -> None: ...

    def stats(self) -> Mapping[str, SchedulerStats]:
        """Current state and totals of each model's scheduler."""
        ...

    def predicted_wait(self, model: str, service_class: ServiceClass, prompt_tokens: int) -> PredictedWait:
        """The predicted wait of a request of this class that is submitted now."""
        ...

    def adapter_slots(self, model: str) -> int:
        """Adapters that a model keeps resident at once; 0: it takes none."""
        ...

    def queue_depth(self, model: str) -> int:
        """Requests of all classes that wait for a model, including reserved ones that will not fit at once."""
        ...

    def reserve(self, model: str, service_class: ServiceClass) -> Reservation:
        """Reserve a place in the queue for a request that is admitted now, until it is submitted or released."""
        ...

    def submit(self, model: str, call: EngineCall) -> OutputStream:
        """A call, submitted when its stream is entered.

        Raises:
            UnservableRequest, InvalidParameter: at the call, before anything is computed.
            EngineError: when the stream is read, where a request fails inside the engine.
        """
        ...
