"""An event loop on which nothing takes time but sleeping, and that no time either."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from gateway.tools.bench.clock import Clock

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Instead of waiting, lets the loop's time pass."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everything waits for something that never comes"
        self.now_s += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def stall(self, seconds: float) -> None:
        """The process stands still: time passes, and nothing runs."""
        self._virtual.now_s += seconds


def in_virtual_time(action: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(action)


def virtual_loop() -> VirtualTimeLoop:
    """The running one."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    return loop


def virtual_clock() -> Clock:
    """To be called on the loop."""
    return Clock(now_s=asyncio.get_running_loop().time, sleep=asyncio.sleep)
