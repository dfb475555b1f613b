"""How long a gateway process has been silent, as its supervisor knows it.

The event loop of a process that serves sends a heartbeat each `HEARTBEAT_SECONDS`: a process whose loop stands still
lives, keeps its connections and takes its share of new ones, and sends none. The supervisor checks once in
`CHECK_SECONDS`, and counts the checks since the last heartbeat, not the time: a supervisor that was itself stopped, or
starved, finds one check due when it runs again, and the heartbeats that came while it did not run.
"""

import math

HEARTBEAT_SECONDS = 0.5
CHECK_SECONDS = 1.0


class Silence:
    """The state of one process since it became ready."""

    def __init__(self, limit_s: float) -> None:
        """`limit_s`: silence after which the process counts as hung, in whole checks and at least one."""
        self._limit = max(1, math.ceil(limit_s / CHECK_SECONDS))
        self._heard = True
        self._silent_checks = 0

    def heard(self) -> None:
        """A heartbeat has come."""
        self._heard = True

    def check(self) -> bool:
        """Called each `CHECK_SECONDS`. Returns whether the process counts as hung."""
        self._silent_checks = 0 if self._heard else self._silent_checks + 1
        self._heard = False
        return self._silent_checks >= self._limit
