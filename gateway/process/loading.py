"""Loads models on a thread while the main thread continues the start: most of the work releases the GIL."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from gateway.process.progress import Report

T = TypeVar("T")


class _Cancelled(Exception):
    """The load was abandoned."""


@contextlib.contextmanager
def loading(load: Callable[[Report], T], report: Report) -> Iterator[Future[T]]:
    """Run `load` on a thread; the future has its result or exception.

    Leaving the block early cancels the load at its next progress report and waits for the thread, since the process
    must not exit while a thread computes.
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
