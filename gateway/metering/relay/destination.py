"""The relay's destination, and the backoff of its deliveries."""

import random
from collections.abc import Sequence
from typing import Protocol

from gateway.metering.journal.journal_file import JournalRow


class DestinationAway(Exception):
    """The delivery failed or its outcome is unknown. The same rows may be delivered again at any time."""


class DestinationRefused(Exception):
    """The destination rejects the rows until its configuration or the gateway's changes."""


class Destination(Protocol):
    """Receives events. Rows are durable when `deliver` returns. The same rows may be delivered again, so readers
    deduplicate by event id."""

    linger_ms: int
    """Time to wait for more rows before a delivery."""

    async def deliver(self, rows: Sequence[JournalRow]) -> None:
        """
        Raises:
            DestinationAway: retry.
            DestinationRefused: retrying helps only after a change.
        """

    async def aclose(self) -> None:
        """Close the destination without waiting for hanging calls. Idempotent."""


class Backoff:
    """Exponential backoff from `first_s` to `longest_s`, with jitter: each wait is drawn from the upper half of its
    bound, so clients do not retry simultaneously."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._tries = 0

    def next_s(self) -> float:
        bound_s = min(self._longest_s, self._first_s * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return random.uniform(bound_s / 2, bound_s)

    def reset(self) -> None:
        self._tries = 0
