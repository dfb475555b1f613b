"""Circuit breaker of an upstream (M. Nygard, Release It!), and its budget of retries.

Closed: requests pass. After `FAILURES` failures in a row it opens: requests fail at once. After a pause, which doubles
up to `MAX_PAUSE_S` while the server stays away, it is half-open: one request passes, and decides. A health check that
succeeds ends the pause.
"""

from collections.abc import Callable
from enum import StrEnum

FAILURES = 5
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0

RETRY_SHARE = 0.1
"""Retries per request, on average."""
MOST_SAVED_RETRIES = 10.0


class BreakerState(StrEnum):
    """Whether requests pass."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class UpstreamBreaker:
    """For one event loop. `now_s`: a monotonic clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._open_until_s: float | None = None
        self._trials = 0
        self.opened_total = 0

    @property
    def state(self) -> BreakerState:
        """Its state now."""
        if self._open_until_s is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self._now_s() < self._open_until_s else BreakerState.HALF_OPEN

    @property
    def retry_after_s(self) -> float | None:
        """When a request may pass; None: now."""
        match self.state:
            case BreakerState.CLOSED:
                return None
            case BreakerState.HALF_OPEN:
                return FIRST_PAUSE_S if self._trials else None
            case BreakerState.OPEN:
                assert self._open_until_s is not None
                return self._open_until_s - self._now_s()

    def begin(self) -> bool:
        """Count a request that is sent now; `retry_after_s` must be None. Returns True if it is the trial request of a
        half-open breaker. The caller then has to call `end_trial`."""
        is_trial = self.state is BreakerState.HALF_OPEN
        self._trials += is_trial
        return is_trial

    def end_trial(self) -> None:
        """Release the trial slot, after a success or a failure."""
        self._trials -= 1

    def on_success(self) -> None:
        """The server has begun an answer, or refused a request as a working server does."""
        self._failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._open_until_s = None

    def on_failure(self) -> None:
        """The server could not be reached or failed."""
        self._failures += 1
        state = self.state
        if state is BreakerState.OPEN or (state is BreakerState.CLOSED and self._failures < FAILURES):
            return
        if state is BreakerState.HALF_OPEN:
            self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s)
        self.opened_total += 1
        self._open_until_s = self._now_s() + self._pause_s

    def on_probe(self, *, succeeded: bool) -> None:
        """A health check. A success ends the pause; a failure counts as a request's."""
        if not succeeded:
            self.on_failure()
        elif self._open_until_s is not None:
            self._open_until_s = min(self._open_until_s, self._now_s())


class RetryBudget:
    """Retries at most `RETRY_SHARE` of the requests, so that they do not multiply the load of a failing server."""

    def __init__(self) -> None:
        self._saved = 1.0
        self.retries_total = 0

    def on_request(self) -> None:
        """A request is sent for the first time."""
        self._saved = min(MOST_SAVED_RETRIES, self._saved + RETRY_SHARE)

    def take(self) -> bool:
        """Whether a request may be sent once more."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        self.retries_total += 1
        return True
