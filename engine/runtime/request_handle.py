"""Sends a reader's commands for its requests to the engine thread."""

from collections.abc import Sequence
from contextlib import suppress

from engine.errors import EngineError
from engine.runtime.core import EngineCore
from engine.runtime.streams import AbortListener, Choice, OutputDispatcher


class RequestHandle:
    """Aborts, pauses and resumes choices of one call on one model. All calls are no-ops once the engine is closed."""

    def __init__(self, core: EngineCore, model: str, dispatcher: OutputDispatcher) -> None:
        self._core = core
        self._model = model
        self._dispatcher = dispatcher

    def abort(self, choices: Sequence[Choice], on_abort: AbortListener | None = None) -> None:
        """End choices that are still running. `on_abort` is called for each on the event loop once the engine has
        released all."""

        def notify() -> None:
            if on_abort is not None:
                for choice in choices:
                    on_abort(choice.index, choice.request.usage)

        if not choices:
            return
        try:
            self._core.abort(self._model, _ids(choices), lambda: self._dispatcher.call(notify))
        except EngineError:
            notify()  # a closed engine uses no request

    def pause(self, choices: Sequence[Choice]) -> None:
        """Stop computing choices whose deltas are not read."""
        with suppress(EngineError):
            self._core.pause(self._model, _ids(choices))

    def resume(self, choices: Sequence[Choice]) -> None:
        """Compute the choices again."""
        with suppress(EngineError):
            self._core.resume(self._model, _ids(choices))


def _ids(choices: Sequence[Choice]) -> list[str]:
    return [choice.request.id for choice in choices]
