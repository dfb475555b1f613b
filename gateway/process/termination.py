"""What SIGTERM and SIGINT do to the program. Imports nothing heavy: it is there before torch is."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = b"\x1b[?25h"


class Termination:
    """In its block a signal ends the process at once, with the status that a shell gives to it: 128 and its number.
    After `begins(with_what)` the first one calls that instead, and the next one ends the process.

    Nothing is lost by ending at once: every store is written so that a process may be killed. The process exits rather
    than let the signal kill it, as one that is number 1 in a container is not killed by what it has no handler for.
    """

    def __init__(self) -> None:
        self._begin: Callable[[], None] | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """In the main thread."""
        self._former = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def begins(self, begin: Callable[[], None]) -> None:
        """What the next signal does. It is called between any two instructions of the main thread."""
        self._begin = begin

    def _handle(self, number: int, _: FrameType | None) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()
            return
        if sys.stderr.isatty():  # progress bars hide the cursor, and clean nothing up now
            os.write(sys.stderr.fileno(), _SHOW_CURSOR)
        os._exit(128 + number)
