"""An event loop in virtual time: where nothing is ready it waits for no one, and the clock jumps to the next timer."""

import asyncio
import selectors
from collections.abc import Callable
from concurrent.futures import Executor
from itertools import count
from math import ceil
from typing import Any

from tests.whole.clock import VirtualClock


class Stuck(AssertionError):
    """Nothing is ready, no timer runs: whatever is waited for never comes."""


class _Numbered:
    """Its hash is a number that its loop gives it, so that sets of them go the same way wherever they lie in memory."""

    _number: int | None = None

    def __hash__(self) -> int:
        if self._number is None:
            self._number = next(self.get_loop().numbers)  # type: ignore[attr-defined]
        return self._number


class _Future(_Numbered, asyncio.Future[Any]):
    pass


class _Task(_Numbered, asyncio.Task[Any]):
    pass


class VirtualLoop(asyncio.SelectorEventLoop):
    """`before_jump` is called when all that could happen at an instant has happened, before the clock moves on."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.before_jump: Callable[[], None] = lambda: None
        self.run_on_thread: Callable[[Callable[[], Any]], asyncio.Future[Any]] | None = None
        self.numbers = count()
        super().__init__(_NoSelector(self))  # type: ignore[arg-type]
        self.set_task_factory(lambda loop, coro, **options: _Task(coro, loop=loop, **options))

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def time(self) -> float:
        return self.clock.now_ns / 1e9

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:
        self._check_closed()  # type: ignore[attr-defined]
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Executor | None, func: Callable[..., Any], *args: Any) -> Any:
        """On a simulated thread, whichever pool was meant."""
        assert self.run_on_thread is not None, "there are no threads yet"
        return self.run_on_thread(lambda: func(*args))

    def _make_self_pipe(self) -> None:
        """Nothing outside of the loop wakes it."""

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class _NoSelector:
    """In place of one: there are no sockets."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing will ever happen again")
        if timeout > 0:
            self._loop.before_jump()
            if not self._loop._ready:  # type: ignore[attr-defined]
                self._loop.clock.advance(max(1, ceil(timeout * 1e9)))
        return []

    def get_map(self) -> dict[int, selectors.SelectorKey]:
        return {}

    def close(self) -> None:
        pass
