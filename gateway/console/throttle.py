"""How often somebody may try keys at the login form."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable

MAX_FAILURES = 20
WINDOW_S = 60.0
MAX_ADDRESSES = 10_000


class LoginThrottle:
    """Counts failures of an address within `WINDOW_S`. No key of 256 random bits is guessed; this keeps what tries from
    asking the database at will, and from filling the log."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """How long until the address may try again; 0 where it may now."""
        failures = self._failures.get(address)
        if failures is None:
            return 0.0
        now = self._clock()
        while failures and failures[0] <= now - WINDOW_S:
            failures.popleft()
        return failures[0] + WINDOW_S - now if len(failures) >= MAX_FAILURES else 0.0

    def failed(self, address: str) -> None:
        self._failures.setdefault(address, deque(maxlen=MAX_FAILURES)).append(self._clock())
        self._failures.move_to_end(address)
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
