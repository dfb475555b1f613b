"""The shared store, and a bounded share of every limit for the time that it is away.

While the breaker is open, or when a call has just failed, this replica admits up to `share` of each limit, by counters
of its own. So a limit is overspent by at most share x replicas of itself in each of its windows: the local counters go
on through every flap. A share of less than one request or one slot is one. Whoever pays in advance is not admitted.

What was used meanwhile is committed to the shared store once that is back, at the time of its admission. Not merged:
holds of the outage that are still open count there when they are settled, not before; what does not fit
`MAX_DEFERRED`, and what this process had not merged when it died, is lost to the limits (the bill does not depend on
them). What the shared store held before an outage longer than `HOLD_TTL_MS` has expired there, and is settled late.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gateway.admission.breaker import CircuitBreaker
from gateway.admission.memory import MemoryStore
from gateway.admission.model import (
    Committed,
    Demand,
    Hold,
    HoldRequest,
    LimitState,
    Measure,
    Outcome,
    Quota,
    Refusal,
    Settlement,
    Use,
)
from gateway.admission.store import LimitStore, StoreAway

MAX_DEFERRED = 100_000
MERGE_S = 1.0
"""How long after a settlement that failed, and after each try to repeat it, the next try comes."""
DEGRADED_RETRY_MS = 5_000
"""When to come back with what is more than the share, though not more than the limit: the store may be back."""

_COUNTED_IN_ONES = (Measure.REQUESTS_PER_MINUTE, Measure.CONCURRENT)


class SharedStore(LimitStore, Protocol):
    async def ping(self) -> None:
        """Raises: StoreAway."""
        ...


class LocalShare:
    """A `LimitStore` that always answers. 0 < share <= 1."""

    def __init__(self, shared: SharedStore, share: float, local: LimitStore | None = None) -> None:
        self._shared = shared
        self._share = share
        self._local = local or MemoryStore()
        self._breaker = CircuitBreaker(shared.ping)
        self._deferred: deque[tuple[Hold, Use]] = deque()
        self._merger: asyncio.Task[None] | None = None
        self._degraded = 0
        self._merged = 0
        self._dropped = 0

    async def hold(self, request: HoldRequest) -> Hold | Refusal:
        try:
            return await self._breaker.call(lambda: self._shared.hold(request))
        except StoreAway:
            return await self._hold_locally(request)

    async def extend(self, hold: Hold) -> bool:
        """Raises: StoreAway, where the hold is the shared store's and that is away."""
        if hold.degraded:
            return await self._local.extend(hold)
        return await self._breaker.call(lambda: self._shared.extend(hold))

    async def settle(self, hold: Hold, use: Use) -> Settlement:
        if not hold.degraded:
            return await self._settle_shared(hold, use)
        settlement = await self._local.settle(hold, use)
        if settlement.outcome is not Outcome.REPEATED:
            # Where the call that seemed to fail has left a hold after all, this frees it too.
            await self._settle_shared(hold, use)
        return settlement

    async def usage(self, quotas: Sequence[Quota]) -> tuple[LimitState, ...]:
        try:
            return await self._breaker.call(lambda: self._shared.usage(quotas))
        except StoreAway:
            return await self._local.usage([self._share_of(quota) for quota in quotas])

    async def restore(self, known: Sequence[Committed]) -> None:
        """Raises: StoreAway."""
        await self._breaker.call(lambda: self._shared.restore(known))

    def counts(self) -> Mapping[str, int]:
        """`breaker_open` and `unmerged` are of this moment, the rest is since the start."""
        return {
            "breaker_open": int(self._breaker.is_open),
            "breaker_opened": self._breaker.opened_total,
            "store_failures": self._breaker.failures_total,
            "degraded": self._degraded,
            "unmerged": len(self._deferred),
            "merged": self._merged,
            "dropped": self._dropped,
        }

    async def aclose(self) -> None:
        """What can be merged is."""
        if self._merger is not None:
            self._merger.cancel()
            await asyncio.wait([self._merger])
            await self._merge()
        await self._breaker.aclose()
        await self._shared.aclose()

    async def _hold_locally(self, request: HoldRequest) -> Hold | Refusal:
        if any(demand.quota.scope.measure is Measure.CREDIT_NANODOLLARS for demand in request.demands):
            raise StoreAway("what is left of a balance cannot be known, and nobody paid for more")
        self._degraded += 1
        scaled = tuple(
            Demand(self._share_of(demand.quota), demand.fixed, demand.per_token) for demand in request.demands
        )
        answer = await self._local.hold(replace(request, demands=scaled))
        if isinstance(answer, Hold):
            return replace(answer, degraded=True)
        whole = next(demand for demand in request.demands if demand.quota.scope == answer.quota.scope)
        retry_ms = answer.retry_after_ms
        if retry_ms is None and whole.amount(request.minimum_tokens) <= whole.quota.limit:
            retry_ms = DEGRADED_RETRY_MS
        return replace(answer, quota=whole.quota, retry_after_ms=retry_ms, degraded=True)

    def _share_of(self, quota: Quota) -> Quota:
        least = min(1, quota.limit) if quota.scope.measure in _COUNTED_IN_ONES else 0
        return Quota(quota.scope, max(least, int(quota.limit * self._share)))

    async def _settle_shared(self, hold: Hold, use: Use) -> Settlement:
        try:
            return await self._breaker.call(lambda: self._shared.settle(hold, use))
        except StoreAway:
            self._defer(hold, use)
            return Settlement(Outcome.DEFERRED)

    def _defer(self, hold: Hold, use: Use) -> None:
        if len(self._deferred) >= MAX_DEFERRED:
            self._dropped += 1
            return
        self._deferred.append((hold, use))
        if self._merger is None:
            self._merger = asyncio.create_task(self._merge_until_done())

    async def _merge_until_done(self) -> None:
        try:
            while self._deferred:
                await asyncio.sleep(MERGE_S)
                await self._merge()
        finally:
            self._merger = None

    async def _merge(self) -> None:
        """Repeat what was deferred, until one fails; that one goes to the end, lest it be in the way for ever."""
        while self._deferred:
            hold, use = self._deferred[0]
            try:
                await self._repeat(hold, use)
            except StoreAway:
                self._deferred.rotate(-1)
                return
            self._deferred.popleft()
            self._merged += 1

    async def _repeat(self, hold: Hold, use: Use) -> Settlement:
        return await self._breaker.call(lambda: self._shared.settle(hold, use))
