"""A dedicated thread for a blocking client."""

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from engine.runtime.futures import outcome_of

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Worker:
    """Runs calls in order on one thread, so the objects that they use need no lock.

    The thread is a daemon: a hanging call does not block the exit of the process.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """The result or exception of `function`. Cancelling the caller does not stop the call."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function(*arguments))
            except BaseException as error:  # raised in the caller
                done.set_exception(error)

        self._calls.put(run)
        return await outcome_of(done)

    def post(self, function: Callable[[], object]) -> None:
        """Run `function` after the earlier calls. An exception is logged."""

        def run() -> None:
            try:
                function()
            except Exception:  # keep the thread alive
                _log.exception("a call failed on the thread %s", self._thread.name)

        self._calls.put(run)

    def end(self) -> None:
        """Stop the thread after the calls made so far."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
