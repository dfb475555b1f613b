"""A rate limit of failed logins by client address."""

import time
from collections import deque
from collections.abc import Callable

from cachetools import FIFOCache

MAX_FAILURES = 20
WINDOW_S = 60.0
MAX_ADDRESSES = 10_000


class LoginThrottle:
    """Counts tries of an address within `WINDOW_S` that failed or are under way. No key of 256 random bits is guessed;
    this keeps what tries from asking the database at will, and from filling the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Beyond its size, the address whose last try is the oldest is forgotten.
        self._tries: FIFOCache[str, deque[float]] = FIFOCache(MAX_ADDRESSES)

    def wait_s(self, address: str) -> float:
        """How long until the address may try again; 0 where it may now."""
        tries = self._tries.get(address)
        if tries is None:
            return 0.0
        now = self._clock()
        while tries and tries[0] <= now - WINDOW_S:
            tries.popleft()
        return tries[0] + WINDOW_S - now if len(tries) >= MAX_FAILURES else 0.0

    def count_try(self, address: str) -> None:
        """Before it is known how it ends: of many at a time, no more begin than may fail."""
        tries = self._tries.setdefault(address, deque(maxlen=MAX_FAILURES))
        tries.append(self._clock())
        self._tries[address] = tries

    def forget_try(self, address: str) -> None:
        """One that did not fail."""
        tries = self._tries.get(address)
        if tries:
            tries.pop()
            if not tries:
                del self._tries[address]
