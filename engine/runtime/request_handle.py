"""What the reader of one call has the engine thread do with its requests."""

from collections.abc import Sequence
from contextlib import suppress

from engine.errors import EngineError
from engine.runtime.core import EngineCore
from engine.runtime.streams import AbortListener, Choice, OutputDispatcher


class RequestHandle:
    """From an event loop to the engine thread, for one model. Once the engine is closed there is nothing to do."""

    def __init__(self, core: EngineCore, model: str, dispatcher: OutputDispatcher) -> None:
        self._core = core
        self._model = model
        self._dispatcher = dispatcher

    def abort(self, choices: Sequence[Choice], on_abort: AbortListener | None = None) -> None:
        """End choices that the engine would go on with. `on_abort` is told of each on the event loop, when the engine
        has let go of them all."""

        def tell() -> None:
            if on_abort is not None:
                for choice in choices:
                    on_abort(choice.index, choice.request.usage)

        if not choices:
            return
        try:
            self._core.abort(self._model, _ids(choices), lambda: self._dispatcher.call(tell))
        except EngineError:
            tell()  # it is closed, and has let go of all

    def pause(self, choices: Sequence[Choice]) -> None:
        """Have nothing computed for choices that nobody reads."""
        with suppress(EngineError):
            self._core.pause(self._model, _ids(choices))

    def resume(self, choices: Sequence[Choice]) -> None:
        """They are read again."""
        with suppress(EngineError):
            self._core.resume(self._model, _ids(choices))


def _ids(choices: Sequence[Choice]) -> list[str]:
    return [choice.request.id for choice in choices]
