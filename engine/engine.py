"""The engine's public face: load models, generate text, stream it. See the README for five lines of use."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.request import STANDARD, SamplingParams, ServiceClass, TextDelta
from engine.text.processor import TextProcessor


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model. `max_model_len` bounds prompt and answer together, in tokens."""

    name: str
    text: TextProcessor
    max_model_len: int
    vocab_size: int
    created: int


class Engine:
    """Loaded models and the thread that steps them."""

    models: Mapping[str, ServedModel]

    @classmethod
    def load(cls, models: Mapping[str, Path], config: EngineConfig | None = None) -> "Engine": ...

    def start(self) -> None:
        """Start the engine thread and warm the models up. Idempotent."""
        ...

    def close(self) -> None:
        """Abort what runs, stop the thread. Idempotent."""
        ...

    @property
    def ready(self) -> bool:
        """Started, warm, and the engine thread is alive."""
        ...

    def stream(
        self,
        model: str,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        tenant: str = "",
        service_class: ServiceClass = STANDARD,
    ) -> AsyncIterator[TextDelta]:
        """Generate from prompt token ids; deltas of all `n` choices, interleaved, in the order they are ready.

        Validation happens here, before the first `__anext__`. Closing the iterator (or cancelling the task that
        iterates) aborts the request and frees its blocks within one step. A failure of the request inside the
        engine raises `EngineError` from `__anext__`.

        Raises:
            KeyError: the model is not loaded.
            UnservableRequest: the prompt is empty or does not fit the window with one token to answer.
            InvalidParameter: a token id outside the vocabulary.
        """
        ...
