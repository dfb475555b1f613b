"""Handles SIGTERM and SIGINT. It imports nothing heavy, as it is installed before torch is imported."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = b"\x1b[?25h"


class DrainSignal(Protocol):
    """Where a process learns that it should end."""

    def begins(self, begin: Callable[[], None]) -> None:
        """Set the function that the next signal calls."""
        ...


class Termination:
    """A context manager in which a signal ends the process at once, with the shell's status: 128 plus its number. After
    `begins(begin)` the first signal calls `begin` instead, and the next one ends the process.

    Ending at once loses no data: all stores tolerate a killed process. The process exits by itself, because as PID 1 of
    a container it would not be killed by an unhandled signal.
    """

    def __init__(self) -> None:
        self._begin: Callable[[], None] | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers. Must be called in the main thread."""
        self._former = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def begins(self, begin: Callable[[], None]) -> None:
        """Set the function that the next signal calls, between any two instructions of the main thread."""
        self._begin = begin

    def _handle(self, number: int, _: FrameType | None) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()
            return
        if sys.stderr.isatty():  # progress bars hide the cursor and are not closed
            os.write(sys.stderr.fileno(), _SHOW_CURSOR)
        os._exit(128 + number)
