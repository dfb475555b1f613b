"""Models load on a thread while the main one goes on starting: most of that is native code, without the interpreter."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from gateway.process.progress import Report

T = TypeVar("T")


class _Cancelled(Exception):
    """Nobody waits for what is being loaded."""


@contextlib.contextmanager
def loading(load: Callable[[Report], T], report: Report) -> Iterator[Future[T]]:
    """What `load` gives, and raises, is in the future.

    Whoever leaves the block before has it end at its next report, and waits for that: a process must not end while a
    thread computes.
    """
    loaded: Future[T] = Future()
    cancelled = threading.Event()

    def reported(what: str, done: int, total: int) -> None:
        if cancelled.is_set():
            raise _Cancelled
        report(what, done, total)

    def run() -> None:
        try:
            loaded.set_result(load(reported))
        except BaseException as error:
            loaded.set_exception(error)

    thread = threading.Thread(target=run, name="turnpike-loading", daemon=True)
    thread.start()
    try:
        yield loaded
    finally:
        cancelled.set()
        thread.join()
