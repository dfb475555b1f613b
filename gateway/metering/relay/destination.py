"""Where the relay brings events, and how long it waits when that is away."""

import random
from collections.abc import Sequence
from typing import Protocol

from gateway.metering.journal.journal_file import JournalRow


class DestinationAway(Exception):
    """It did not take all rows, or nobody knows whether it did. The same rows may be delivered again at any time."""


class DestinationRefused(Exception):
    """It answers and will not take these rows until somebody changes something there or here."""


class Destination(Protocol):
    """What `deliver` returned for has arrived for good. The same rows may come again; whoever reads them at the other
    end knows each event by its id."""

    linger_ms: int
    """How long it pays to wait for more rows before a delivery."""

    async def deliver(self, rows: Sequence[JournalRow]) -> None:
        """
        Raises:
            DestinationAway: try again.
            DestinationRefused: trying again helps only after a change.
        """

    async def aclose(self) -> None:
        """Let go of it, without waiting for what hangs. Idempotent."""


class Backoff:
    """Waits that double from `first_s` up to `longest_s`, each drawn from its upper half, so that many who lost the
    same server do not all come back in one moment."""

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
