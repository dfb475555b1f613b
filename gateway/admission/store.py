"""Interface of a store of limits: `MemoryStore`, `RedisStore`, and `LocalShare` over both."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.admission.model import Committed, Hold, HoldRefusal, HoldRequest, LimitState, Quota, Scope, Settlement, Use

HOLD_TTL_MS = 30_000
"""Lifetime of a hold without a heartbeat, in milliseconds."""
FINISHED_MS = 600_000
"""Milliseconds for which a settled or expired request is remembered, so a repetition changes nothing."""


class StoreAway(Exception):
    """The store of limits does not answer, or not in time. `scope`: the limit that only the store may decide; None: no
    such limit."""

    def __init__(self, message: str, scope: Scope | None = None) -> None:
        super().__init__(message)
        self.scope = scope


class LimitStore(Protocol):
    """Counters of held and committed amounts, by one clock.

    Invariants. In every window of every quota, a hold never raises held + committed above the limit. A hold is freed
    once: by settling, or by expiry after `HOLD_TTL_MS` without `extend`, whichever is first. Use is committed once.
    Committed amounts are never taken back.
    """

    async def hold(self, request: HoldRequest) -> Hold | HoldRefusal:
        """Take all demands at once, with the largest number of tokens up to the desired one that fits, or nothing. The
        same request id gets the same hold again."""
        ...

    async def extend(self, hold: Hold) -> bool:
        """Keep a hold alive for another `HOLD_TTL_MS`. False: it is not open any more."""
        ...

    async def settle(self, hold: Hold, use: Use) -> Settlement:
        """Commit what was used, and free the hold."""
        ...

    async def usage(self, quotas: Sequence[Quota]) -> tuple[LimitState, ...]:
        """The states of quotas of one tenant."""
        ...

    async def restore(self, known: Sequence[Committed]) -> None:
        """Set what this process has committed to the known amounts, which its books say; called before it holds
        anything. Where a store does not know its part of a counter, that is raised to at least the amount. Amounts of a
        past window change nothing."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Counts of the store for metrics."""
        ...

    async def aclose(self) -> None:
        """Close connections and stop background tasks."""
