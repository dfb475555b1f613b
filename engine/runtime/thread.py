"""The one thread that computes for an engine, or launches its steps on a GPU.

Niceness is the only order among one process's threads that Linux allows without privileges, and it also counts against
all other processes of the cgroup or session (sched(7), "autogroup"). Measured with `python -m benchmarks.niceness` on
Linux 6.18, one core: next to a busy process, a thread of niceness 10 gets 10 % of the core, of 3 34 %, of 1 44 %, of 0
50 %. The event loop wakes from a sleep 0.1 ms late in the median and 0.2 to 0.7 ms at the 99th percentile at each of
them: EEVDF runs a waking thread by how little it has run, and niceness adds only the order among equals, for which 1 is
enough. SCHED_BATCH gets the share of niceness 0.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_SWITCH_INTERVAL_SECONDS = 0.0005
"""GIL switch interval. At CPython's default of 5 ms a busy event loop delays each step by up to that, and concurrent
imports delay each operation of loading."""

_NICENESS = 1
"""Niceness of the computing threads, relative to the process: below the event loop, level with other programs."""


class EngineThread:
    """Runs submitted calls one after another on a single daemon thread.

    All parallel computation must run here, including the start-up probe and the loading of weights: each thread that
    enters OpenMP gets its own team of workers, and once the teams outnumber the cores libgomp puts workers to sleep
    between any two ops. With one team more, a decode step of half a billion parameters took a third longer.

    Threads that compute have lower priority than the others of the process, which need a core for less than a
    millisecond at a time to refuse a request or deliver a token, and would otherwise wait for the next scheduler tick.
    """

    def __init__(self, *, computes: bool = True) -> None:
        """`computes`: false for a thread that launches steps on a GPU, which would wait while it does."""
        self._computes = computes
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="turnpike-engine", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Queue a call; returns the future of its result."""
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def close(self, *, wait: bool = True) -> None:
        """Stop after all submitted calls. `wait`: block until then; False if the thread may hang."""
        self._calls.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        if self._computes:
            lower_priority()
        while (item := self._calls.get()) is not None:
            call, future = item
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


def lower_priority() -> None:
    """Lower the priority of the calling thread and of threads that it starts from now on. Linux only; a no-op
    elsewhere.

    Needed by every thread that computes for long, and by the same amount: the engine thread holds the GIL at times, and
    the event loop would wait for it while a thread of higher priority has the core.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + _NICENESS)
