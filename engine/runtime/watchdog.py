"""Detects a step of the engine that does not return."""

import faulthandler
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from types import TracebackType

from engine.errors import EngineError

logger = logging.getLogger(__name__)

_LOOKS_A_LIMIT = 8
"""Checks within the time limit of a step: a hang is detected at most an eighth of the limit late."""


class StepHung(EngineError):
    """The watched block returned after the watchdog had given it up; its requests have been answered already."""


class Watchdog:
    """Watches blocks of code, one at a time on one thread, as a context manager.

    When a block takes longer than `limit_seconds`, the stacks of all threads are logged and `on_hang` is called once,
    on the watchdog's thread. From then on the watched thread counts as lost: if the block returns after all, it raises
    `StepHung` and must not touch anything that `on_hang` handled. A lock decides which of the two comes first.

    A thread that hangs while it holds the GIL stops the watchdog, too; waiting for a device releases the GIL.
    """

    def __init__(self, limit_seconds: float, on_hang: Callable[[], None]) -> None:
        self._limit_seconds = limit_seconds
        self._on_hang = on_hang
        self._lock = threading.Lock()
        self._since: float | None = None
        self._hung = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="turnpike-watchdog", daemon=True)

    @property
    def hung(self) -> bool:
        """Whether a block was given up."""
        return self._hung

    @property
    def age_seconds(self) -> float:
        """How long the current block has been running; 0 between blocks."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        """Start the watchdog's thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._closed.set()

    def __enter__(self) -> None:
        with self._lock:
            self._since = time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._since = None
            hung = self._hung
        if hung:
            raise StepHung("the step was given up before it came back") from error

    def _run(self) -> None:
        while not self._closed.wait(self._limit_seconds / _LOOKS_A_LIMIT):
            if self._give_up():
                logger.critical("a step takes longer than %g s; the engine stops. %s", self._limit_seconds, _stacks())
                self._on_hang()
                return

    def _give_up(self) -> bool:
        with self._lock:
            late = self._since is not None and time.monotonic() - self._since > self._limit_seconds
            self._hung = self._hung or late
        return late


def _stacks() -> str:
    """The stacks of all threads. Written by way of a file, since `faulthandler` needs a descriptor so as to work at any
    time."""
    try:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return f"All threads:\n{file.read()}"
    except OSError as error:
        return f"No stacks, as there is no room for a file: {error}"
