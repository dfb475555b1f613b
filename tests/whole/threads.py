"""Threads as greenlets: the program's own code for threads runs unchanged, one step at a time, on the event loop.

A thread runs until it blocks (a condition, an event, an empty queue, a join, a sleep); then the loop resumes. It wakes
after a drawn latency, as an operating system would. It may also be set aside where it is about to take a lock, while it
holds none, so that others come between. The event loop itself never blocks: where it would, the run fails.
"""

import asyncio
import threading as real_threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

from tests.whole.loop import VirtualLoop


class WouldBlock(AssertionError):
    """The event loop waits for a thread."""


@dataclass(eq=False)
class _Waiter:
    """A blocked thread. It is woken once."""

    thread: greenlet
    timer: asyncio.TimerHandle | None = None
    woken: bool = False


class Scheduler:
    """Runs the simulated threads of one loop. `failures`: unexpected errors that ended a thread."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._hub = getcurrent()
        self._held: dict[greenlet, int] = {}
        self.alive: dict[greenlet, str] = {}
        self.failures: list[BaseException] = []
        self._names = 0
        loop.run_on_thread = self.run_on_thread

    @property
    def on_thread(self) -> bool:
        return getcurrent() in self.alive

    def spawn(self, run: Callable[[], None], name: str) -> greenlet:
        def body() -> None:
            try:
                run()
            except Exception as error:
                self.failures.append(error)
            finally:
                self.alive.pop(thread, None)

        thread = greenlet(body, parent=self._hub)
        self.alive[thread] = name
        self._loop.call_later(self.latency_s(), thread.switch)
        return thread

    def latency_s(self) -> float:
        """Until a thread that could run does: mostly some microseconds, at times milliseconds."""
        draw = self._random.random()
        if draw < 0.9:
            return self._random.uniform(5e-6, 1e-4)
        return self._random.uniform(1e-4, 2e-3) if draw < 0.99 else self._random.uniform(2e-3, 2e-2)

    def sleep(self, seconds: float) -> None:
        """Of the calling thread."""
        self.block(self.waiter(), seconds)

    def waiter(self) -> _Waiter:
        thread = getcurrent()
        if thread not in self.alive:
            raise WouldBlock("the event loop is about to wait for a thread")
        return _Waiter(thread)

    def block(self, waiter: _Waiter, timeout: float | None) -> bool:
        """Until it is woken; False after the timeout."""
        if timeout is not None:
            waiter.timer = self._loop.call_later(max(timeout, 0.0), self._resume, waiter, False)
        return bool(self._hub.switch())

    def wake(self, waiter: _Waiter) -> None:
        if not waiter.woken:
            waiter.woken = True
            if waiter.timer is not None:
                waiter.timer.cancel()
            self._loop.call_later(self.latency_s(), self._switch, waiter.thread, True)

    def step_aside(self) -> None:
        """At times, a thread that is about to take a lock is overtaken by others."""
        thread = getcurrent()
        if thread in self.alive and not self._held.get(thread) and self._random.random() < 0.1:
            self.sleep(self.latency_s())

    def took_lock(self) -> None:
        thread = getcurrent()
        self._held[thread] = self._held.get(thread, 0) + 1

    def left_lock(self) -> None:
        thread = getcurrent()
        self._held[thread] -= 1
        if not self._held[thread]:
            del self._held[thread]

    def run_on_thread(self, call: Callable[[], Any]) -> "asyncio.Future[Any]":
        """As the loop's default executor does: what it returns or raises, in a future of the loop."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)

        def run() -> None:
            try:
                result = call()
            except BaseException as error:
                self._loop.call_soon(settle, None, error)
            else:
                self._loop.call_soon(settle, result, None)

        self._names += 1
        self.spawn(run, f"pool-{self._names}")
        return future

    def kill_all(self) -> None:
        """End what still blocks, as the end of a process does."""
        for thread in list(self.alive):
            thread.throw()

    def _resume(self, waiter: _Waiter, woken: bool) -> None:
        if not waiter.woken:
            waiter.woken = True
            self._switch(waiter.thread, woken)

    def _switch(self, thread: greenlet, woken: bool) -> None:
        if not thread.dead:
            thread.switch(woken)


_scheduler: Scheduler | None = None


def scheduler() -> Scheduler:
    assert _scheduler is not None, "no simulation runs"
    return _scheduler


class Lock:
    """As `threading.RLock`."""

    def __init__(self) -> None:
        self._owner: greenlet | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler().step_aside()
        me = getcurrent()
        if self._owner not in (None, me):
            raise WouldBlock("a lock is held across a wait")
        self._owner = me
        self._count += 1
        scheduler().took_lock()
        return True

    def release(self) -> None:
        assert self._owner is getcurrent(), "a lock is released by another thread"
        self._count -= 1
        scheduler().left_lock()
        if not self._count:
            self._owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiters: deque[_Waiter] = deque()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        waiter = scheduler().waiter()
        assert (self._lock._owner, self._lock._count) == (getcurrent(), 1), "a wait without the lock, or with it twice"
        self._waiters.append(waiter)
        self._lock.release()
        try:
            return scheduler().block(waiter, timeout)
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        while not predicate():
            if not self.wait(timeout):
                return predicate()
        return True

    def notify(self, n: int = 1) -> None:
        assert self._lock._owner is getcurrent(), "a notify without the lock"
        for _ in range(min(n, len(self._waiters))):
            scheduler().wake(self._waiters.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    def __init__(self) -> None:
        self._set = False
        self._waiters: list[_Waiter] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            scheduler().wake(waiter)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            waiter = scheduler().waiter()
            self._waiters.append(waiter)
            scheduler().block(waiter, timeout)
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return self._set


class SimpleQueue:
    """As `queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiters: deque[_Waiter] = deque()

    def __class_getitem__(cls, item: object) -> "type[SimpleQueue]":
        return cls

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._waiters and _scheduler is not None:  # what a failed run leaves may be collected after it
            scheduler().wake(self._waiters.popleft())

    put_nowait = put

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._items:
            waiter = scheduler().waiter()
            self._waiters.append(waiter)
            scheduler().block(waiter, timeout)
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items

    def qsize(self) -> int:
        return len(self._items)


class Thread:
    """As `threading.Thread`, always a daemon."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., None] | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name = name or "thread"
        self.daemon = True
        self._over = Event()
        self._started = False

    def start(self) -> None:
        self._started = True
        scheduler().spawn(self._run, self.name)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def join(self, timeout: float | None = None) -> None:
        self._over.wait(timeout)

    def is_alive(self) -> bool:
        return self._started and not self._over.is_set()

    def _run(self) -> None:
        try:
            self.run()
        finally:
            self._over.set()


class ThreadPoolExecutor:
    """As that of `concurrent.futures`, with a thread for each call, of which `max_workers` run at once."""

    def __init__(self, max_workers: int = 1, **_: Any) -> None:
        self._closed = False
        self._free = max_workers
        self._waiting: deque[tuple[Callable[[], None], Future[Any]]] = deque()

    def submit(self, call: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(call(*arguments))
            except BaseException as error:
                future.set_exception(error)
            finally:
                self._free += 1
                self._begin()

        self._waiting.append((run, future))
        self._begin()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        if cancel_futures:
            while self._waiting:
                self._waiting.popleft()[1].cancel()

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            scheduler().spawn(self._waiting.popleft()[0], "pool")


@dataclass
class Namespace:
    """A module with some of its names replaced."""

    module: Any
    replaced: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return self.replaced[name] if name in self.replaced else getattr(self.module, name)


@contextmanager
def simulated(loop: VirtualLoop, random: Random, modules: Sequence[Any]) -> Iterator[Scheduler]:
    """For the time of the block `modules` have simulated threads. A real one that is started fails the run."""
    global _scheduler
    import queue

    names: dict[str, Any] = {"Lock": Lock, "RLock": Lock, "Condition": Condition, "Event": Event, "Thread": Thread}
    threading = Namespace(real_threading, names)
    replacements = {
        "threading": threading,
        "queue": Namespace(queue, {"SimpleQueue": SimpleQueue}),
        "Thread": Thread,
        "SimpleQueue": SimpleQueue,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "time": Namespace(time, {"sleep": lambda seconds: scheduler().sleep(seconds)}),
    }
    replaced = [
        (module, name, getattr(module, name)) for module in modules for name in replacements if name in vars(module)
    ]
    start = real_threading.Thread.start

    def refused(thread: real_threading.Thread) -> None:
        raise AssertionError(f"a real thread is started: {thread.name}")

    for module, name, _ in replaced:
        setattr(module, name, replacements[name])
    real_threading.Thread.start = refused  # type: ignore[method-assign]
    _scheduler = Scheduler(loop, random)
    try:
        yield _scheduler
    finally:
        real_threading.Thread.start = start  # type: ignore[method-assign]
        for module, name, original in replaced:
            setattr(module, name, original)
        _scheduler = None
