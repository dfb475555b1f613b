"""Bounds the requests that are computed again because their worker is lost (retry budget, as in Finagle and Envoy)."""

RETRY_SHARE = 0.1
RETRY_RESERVE = 256
"""Requests of one worker: the streams of a single lost one are continued without regard to what came before."""


class RetryBudget:
    """Retries are a `share` of the requests, and `reserve` more. It is full at the start. Callers synchronise."""

    def __init__(self, reserve: int = RETRY_RESERVE, share: float = RETRY_SHARE) -> None:
        self._reserve = reserve
        self._requests_a_retry = round(1 / share)
        self._credit = reserve * self._requests_a_retry
        """In requests, so that sums are exact."""

    def add(self, requests: int = 1) -> None:
        """New requests were submitted."""
        self._credit = min(self._credit + requests, self._reserve * self._requests_a_retry)

    def take(self) -> bool:
        """Whether a request may be computed again, which is counted."""
        if self._credit < self._requests_a_retry:
            return False
        self._credit -= self._requests_a_retry
        return True
