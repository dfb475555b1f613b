"""Sends a reader's commands for its requests to the worker."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from engine.request import Usage
from engine.runtime.delta_dispatcher import Sink
from engine.runtime.reservation import Reservation
from engine.runtime.streams import AbortListener, Choice, DeltaReceiver, OutputDispatcher
from engine.runtime.submission import Submission
from engine.workers.worker_requests import CallRecord, OnAnswer, OnReleased


class SubmitsRequests(Protocol):
    """Computes requests somewhere: see `WorkerRequests`."""

    def submit(
        self,
        model: str,
        submissions: Sequence[Submission],
        sink: Sink,
        on_answer: OnAnswer,
        reservation: Reservation | None = None,
    ) -> CallRecord: ...

    def pause(self, model: str, request_ids: Sequence[str]) -> None: ...

    def resume(self, model: str, request_ids: Sequence[str]) -> None: ...

    def abort(self, record: CallRecord, request_ids: Sequence[str], on_released: OnReleased) -> None: ...


class WorkerHandle:
    """The `RequestControl` of one call on one model of a worker. `dispatchers` returns the dispatcher of the running
    event loop."""

    def __init__(
        self,
        requests: SubmitsRequests,
        model: str,
        submissions: Sequence[Submission],
        dispatchers: Callable[[], OutputDispatcher],
        reservation: Reservation | None,
    ) -> None:
        self._requests = requests
        self._model = model
        self._submissions = submissions
        self._dispatchers = dispatchers
        self._reservation = reservation
        self._dispatcher: OutputDispatcher
        self._record: CallRecord | None = None

    def register(self, choices: Sequence[Choice], receiver: DeltaReceiver) -> None:
        self._dispatcher = self._dispatchers()
        for choice in choices:
            self._dispatcher.register(choice.id, receiver)

    async def submit(self) -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_answer(error: Exception | None) -> None:
            self._dispatcher.call(lambda: _resolve(answer, error))

        self._record = self._requests.submit(
            self._model, self._submissions, self._dispatcher.post, on_answer, self._reservation
        )
        await answer

    def abort(self, choices: Sequence[Choice], on_abort: AbortListener | None = None) -> None:
        if not choices:
            return
        if self._record is None:  # not submitted: nothing was computed
            for choice in choices if on_abort is not None else ():
                assert on_abort is not None
                on_abort(choice.index, self._unused(choice))
            return

        def on_released(usages: Mapping[str, Usage]) -> None:
            if on_abort is not None:
                self._dispatcher.call(lambda: _notify(on_abort, choices, usages))

        self._requests.abort(self._record, _ids(choices), on_released)

    def pause(self, choices: Sequence[Choice]) -> None:
        self._requests.pause(self._model, _ids(choices))

    def resume(self, choices: Sequence[Choice]) -> None:
        self._requests.resume(self._model, _ids(choices))

    def forget(self, choices: Sequence[Choice]) -> None:
        self._dispatcher.forget(_ids(choices))

    def _unused(self, choice: Choice) -> Usage:
        prompts = {each: call.prompt_tokens for call in self._submissions for each in call.request_ids}
        return Usage(prompts[choice.id], 0)


def _ids(choices: Sequence[Choice]) -> list[str]:
    return [choice.id for choice in choices]


def _notify(on_abort: AbortListener, choices: Sequence[Choice], usages: Mapping[str, Usage]) -> None:
    for choice in choices:
        if choice.id in usages:
            on_abort(choice.index, usages[choice.id])


def _resolve(answer: asyncio.Future[None], error: Exception | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)
