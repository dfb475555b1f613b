"""The one thread on which an engine computes.

Niceness is the only order of one process's threads that Linux leaves to everybody, and it counts against all others
of the cgroup or the session, too (sched(7), "autogroup"). `python -m benchmarks.niceness` on Linux 6.18, one core:
beside a busy process a thread of niceness 10 gets 10 % of the core, of 3 34 %, of 1 44 %, of 0 50 %. The event loop
wakes from a sleep 0.1 ms late in the median and 0.2 to 0.7 ms at the 99th percentile at each of them: a waking thread
has its turn by how little it has run (EEVDF), and niceness adds nothing to that but the order among equals, for which 1
is enough. SCHED_BATCH has the share of niceness 0.
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
"""How long a thread may keep the interpreter. At CPython's 5 ms a busy event loop would cost each step as much, and a
program that is still importing each operation of loading."""

_NICENESS = 1
"""Of a thread that computes, and of the workers that it starts: behind the event loop, and beside other programs."""


class EngineThread:
    """Runs what it is given, one call after another, on a single daemon thread.

    Everything that computes in parallel has to run here, from the start-up probe and the loading of weights on: each
    thread that enters OpenMP gets a team of workers of its own, and once the teams outnumber the cores libgomp puts
    workers to sleep between any two ops. With one team more, a decode step of half a billion parameters took a third
    longer.

    They give way to the process's other threads: those need a core for less than a millisecond at a time, to turn a
    request away or to hand out a token, and would else wait for the operating system's next tick to have one.
    """

    def __init__(self) -> None:
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="turnpike-engine", daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        self._calls.put((call, future))
        return future

    def close(self, *, wait: bool = True) -> None:
        """Stop when all that was submitted has run, and wait for it, unless that may never be."""
        self._calls.put(None)
        if wait:
            self._thread.join()

    def _run(self) -> None:
        lower_priority()
        while (item := self._calls.get()) is not None:
            call, future = item
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)


def lower_priority() -> None:
    """Lower the calling thread's priority; threads that it starts from now on inherit that. Linux alone has it so.

    Whatever computes for long has to, and by as much: the engine thread holds the interpreter at times, and the event
    loop would wait for it while a thread above it has the core.
    """
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + _NICENESS)
