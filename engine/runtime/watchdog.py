"""Notices when a step of the engine does not come back."""

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
"""How often it looks within the time that a step may take: a hang is noticed an eighth of the limit late at most."""


class StepHung(EngineError):
    """What was waited for came back after it had been given up: others have answered for it."""


class Watchdog:
    """Watches the blocks of code that run under it, one at a time, as a context manager, on one thread.

    When one takes longer than `limit_seconds`, the stacks of all threads go to the log, and `on_hang` is called, once,
    on the watchdog's own thread. From then on the watched thread is taken for lost: should it come back, it leaves the
    block with `StepHung` and must touch nothing that `on_hang` took care of. A lock decides which of the two happens.

    A thread that hangs and keeps the interpreter's lock stops this one, too; what waits for a device lets go of it.
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
        """Has a block been given up?"""
        return self._hung

    @property
    def age_seconds(self) -> float:
        """How long the block under way has been running; 0 between blocks."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - since

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Watch no more. Idempotent."""
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
    """Where all threads are. By way of a file: what writes them needs a descriptor, so as to work at any time."""
    try:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file=file, all_threads=True)
            file.seek(0)
            return f"All threads:\n{file.read()}"
    except OSError as error:
        return f"No stacks, as there is no room for a file: {error}"
