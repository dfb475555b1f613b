"""Sends a reader's commands for its requests to the engine thread."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from engine.errors import EngineError
from engine.memory.request_hashes import hash_prompts
from engine.request import Request
from engine.runtime.core import EngineCore
from engine.runtime.loaded_model import ServedModel
from engine.runtime.matchers import assign_matchers
from engine.runtime.reservation import Reservation
from engine.runtime.streams import AbortListener, Choice, DeltaReceiver, OutputDispatcher


class RequestHandle:
    """The `RequestControl` of one call on one model. Its synchronous methods have no effect once the engine is closed.

    `requests`: those of each prompt. `dispatchers` returns the dispatcher of the running event loop. `reservation` is
    consumed prompt by prompt.
    """

    def __init__(
        self,
        core: EngineCore,
        served: ServedModel,
        requests: Sequence[Sequence[Request]],
        dispatchers: Callable[[], OutputDispatcher],
        reservation: Reservation | None,
    ) -> None:
        self._core = core
        self._served = served
        self._calls = requests
        self._requests = {request.id: request for call in requests for request in call}
        self._dispatchers = dispatchers
        self._reservation = reservation
        self._dispatcher: OutputDispatcher

    def register(self, choices: Sequence[Choice], receiver: DeltaReceiver) -> None:
        self._dispatcher = self._dispatchers()
        for choice in choices:
            self._dispatcher.register(choice.id, receiver)

    async def submit(self) -> None:
        served = self._served
        for position, requests in enumerate(self._calls):
            if position:
                await asyncio.sleep(0)
            if (grammar := requests[0].params.grammar) is not None:
                await assign_matchers(served, grammar, requests)
            if served.prefix_cache:
                await hash_prompts(requests)
        for requests in self._calls:  # together, so that they share a step
            self._core.submit(served.name, requests, self._dispatcher.post, self._reservation)

    def abort(self, choices: Sequence[Choice], on_abort: AbortListener | None = None) -> None:
        """`on_abort` is called for each choice on the event loop once the engine has released all."""

        def notify() -> None:
            if on_abort is not None:
                for choice in choices:
                    on_abort(choice.index, self._requests[choice.id].usage)

        if not choices:
            return
        try:
            self._core.abort(self._served.name, _ids(choices), lambda: self._dispatcher.call(notify))
        except EngineError:
            notify()  # a closed engine uses no request

    def pause(self, choices: Sequence[Choice]) -> None:
        with suppress(EngineError):
            self._core.pause(self._served.name, _ids(choices))

    def resume(self, choices: Sequence[Choice]) -> None:
        with suppress(EngineError):
            self._core.resume(self._served.name, _ids(choices))

    def forget(self, choices: Sequence[Choice]) -> None:
        self._dispatcher.forget(_ids(choices))


def _ids(choices: Sequence[Choice]) -> list[str]:
    return [choice.id for choice in choices]
