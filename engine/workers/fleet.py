"""The fleet as its sources have it: each is read at its interval, and keeps its last answer while it fails."""

import logging
import threading
from collections.abc import Callable, Sequence

from engine.workers.sources import FleetSource, Member, SourceFailed

logger = logging.getLogger(__name__)


class Fleet:
    """The union of several sources. Two that state the same address state one worker. Thread-safe."""

    def __init__(self, sources: Sequence[FleetSource]) -> None:
        self._sources = sources
        self._lock = threading.Lock()
        self._last: list[frozenset[Member]] = [frozenset() for _ in sources]
        self._failing = [False for _ in sources]
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def is_static(self) -> bool:
        """Whether it never changes."""
        return all(source.interval_seconds is None for source in self._sources)

    def members(self) -> frozenset[Member]:
        """One for each address."""
        with self._lock:
            ordered = [sorted(members, key=lambda each: each.server_name or "") for members in self._last]
        by_address = {member.address: member for members in ordered for member in members}
        return frozenset(by_address.values())

    def read(self, index: int) -> bool:
        """Ask one source. Returns whether its answer has changed."""
        try:
            members = self._sources[index].read()
        except SourceFailed as error:
            if not self._failing[index]:
                logger.warning("workers are looked up again later, the last ones stay: %s", error)
            self._failing[index] = True
            return False
        if self._failing[index]:
            logger.info("workers are looked up again: there are %d", len(members))
        self._failing[index] = False
        with self._lock:
            changed = members != self._last[index]
            self._last[index] = members
        return changed

    def read_all(self) -> None:
        """Ask all sources once."""
        for index in range(len(self._sources)):
            self.read(index)

    def watch(self, on_change: Callable[[], None]) -> None:
        """Ask each source that may change at its interval, on a thread of its own: a slow resolver delays no file."""
        for index, source in enumerate(self._sources):
            if (seconds := source.interval_seconds) is not None:
                thread = threading.Thread(
                    target=self._watch, args=(index, seconds, on_change), name=f"turnpike-fleet-{index}", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def close(self, seconds: float = 1.0) -> None:
        """End the threads. One that waits for a resolver ends by itself. Idempotent."""
        self._closing.set()
        for thread in self._threads:
            thread.join(seconds)

    def _watch(self, index: int, seconds: float, on_change: Callable[[], None]) -> None:
        while not self._closing.wait(seconds):
            if self.read(index) and not self._closing.is_set():
                on_change()
