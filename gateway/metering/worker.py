"""A thread of one's own for a client that blocks."""

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
    """Runs calls one after another on one thread, so that what they use needs no lock.

    The thread is a daemon: a call that hangs cannot hold the process up at its end.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function` returns or raises. A caller that is cancelled leaves it running."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(function(*arguments))
            except BaseException as error:  # it belongs to the caller
                done.set_exception(error)

        self._calls.put(run)
        return await outcome_of(done)

    def post(self, function: Callable[[], object]) -> None:
        """Run it after what was called before. Nobody is told how it went."""

        def run() -> None:
            try:
                function()
            except Exception:  # the thread goes on
                _log.exception("a call failed on the thread %s", self._thread.name)

        self._calls.put(run)

    def end(self) -> None:
        """No further calls; those that were made are still run."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
