"""What a store of limits can do: `MemoryStore`, `RedisStore`, and `LocalShare` between the two."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from gateway.admission.model import Committed, Hold, HoldRefusal, HoldRequest, LimitState, Quota, Scope, Settlement, Use

HOLD_TTL_MS = 30_000
"""How long a hold lives without a sign of life from whoever took it."""
FINISHED_MS = 600_000
"""How long it is remembered that a request was settled or has expired, so that a repetition changes nothing."""


class StoreAway(Exception):
    """The store of limits does not answer, or not in time. `scope`: which limit could not be checked, where it was one
    that nothing but the store may decide."""

    def __init__(self, message: str, scope: Scope | None = None) -> None:
        super().__init__(message)
        self.scope = scope


class LimitStore(Protocol):
    """Counters of what is held and what is committed, by one clock.

    Invariants. In every window of every quota, held + committed never passes the limit by a hold. A hold is freed
    once: by settling, or by expiry after `HOLD_TTL_MS` without `extend`, whichever is first. Use is committed
    once. What is committed is never taken back.
    """

    async def hold(self, request: HoldRequest) -> Hold | HoldRefusal:
        """Take all demands at once, with as many tokens as there is room for up to the desired, or nothing. The
        same request id again gets the same hold again."""
        ...

    async def extend(self, hold: Hold) -> bool:
        """Keep a hold alive for another `HOLD_TTL_MS`. False: it is not open any more."""
        ...

    async def settle(self, hold: Hold, use: Use) -> Settlement:
        """Commit what was used, and free the hold."""
        ...

    async def usage(self, quotas: Sequence[Quota]) -> tuple[LimitState, ...]:
        """Where quotas (of one tenant) stand."""
        ...

    async def restore(self, known: Sequence[Committed]) -> None:
        """Let no counter say that less was committed than is known, by the books, from before the store forgot. What
        is of a window that has passed changes nothing."""
        ...

    def counts(self) -> Mapping[str, int]:
        """For metrics: what the store has to say of itself."""
        ...

    async def aclose(self) -> None: ...
