"""The shared store, with a bounded local share of every limit for its outages.

While the store answers, it makes every decision; a late call is repeated and awaited (`CircuitBreaker`). While the
breaker is open, this replica admits up to `share` of each limit, by counters of its own. A limit is therefore overspent
by at most share x replicas of itself in each of its windows, as the local counters survive every flap. A share below
one request or one slot is rounded up to one. Limits of a day or longer have no local share until the store has been
unreachable for `breaker.AWAY_S`; a credit balance never has one. Before that, a request with such a limit waits at most
`breaker.PATIENCE_S` for the store and is then refused.

After the outage, local use is committed to the shared store at the time of its admission, and holds that an unanswered
call may have taken there are released. Not merged: holds of the outage that are still open (they are merged when they
are settled), what exceeds `MAX_DEFERRED`, and what this process had not merged when it died. The last two are lost to
the limits; bills do not depend on them. Holds that the shared store had before an outage longer than `HOLD_TTL_MS` have
expired there, and are settled late.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from gateway.admission.breaker import PATIENCE_S, CircuitBreaker
from gateway.admission.memory import MemoryStore
from gateway.admission.model import (
    Committed,
    Demand,
    Hold,
    HoldRefusal,
    HoldRequest,
    LimitState,
    Measure,
    Quota,
    Scope,
    Settlement,
    SettleOutcome,
    Use,
)
from gateway.admission.store import LimitStore, StoreAway
from gateway.admission.windows import LimitWindow

MAX_DEFERRED = 100_000
"""Limit of settlements that await merging."""
MERGE_S = 1.0
"""Seconds between a failed settlement, or a failed merge, and the next merge."""
DEGRADED_RETRY_MS = 5_000
"""`retry_after_ms` of a request that exceeds the share but not the limit: the store may be back by then."""

_COUNTED_IN_ONES = (Measure.REQUESTS_PER_MINUTE, Measure.CONCURRENT)


_LONG = (LimitWindow.DAY, LimitWindow.MONTH, LimitWindow.EVER)
"""Windows whose overspending is not made up for within minutes."""
_BY_LENGTH = (LimitWindow.OPEN, LimitWindow.MINUTE, *_LONG)


class SharedStore(LimitStore, Protocol):
    """A `LimitStore` that can be probed."""

    async def probe(self) -> None:
        """Check that the store accepts writes. Raises StoreAway."""
        ...


class LocalShare:
    """A `LimitStore` over an unreliable one. `share`: local part of each limit, 0 < share <= 1."""

    def __init__(self, shared: SharedStore, share: float, local: LimitStore | None = None) -> None:
        self._shared = shared
        self._share = share
        self._local = local or MemoryStore()
        self._breaker = CircuitBreaker(shared.probe)
        self._deferred: deque[tuple[Hold, Use]] = deque()
        self._merger: asyncio.Task[None] | None = None
        self._degraded = 0
        self._unchecked = 0
        self._merged = 0
        self._dropped = 0

    async def hold(self, request: HoldRequest) -> Hold | HoldRefusal:
        """Take a hold in the shared store or, in an outage, from the share. Raises StoreAway if only the shared store
        may decide; a hold that it may have taken is released."""
        attempts = 0

        async def ask() -> Hold | HoldRefusal:
            nonlocal attempts
            attempts += 1
            return await self._shared.hold(request)

        waited_s = 0.0
        while True:
            try:
                answer = await self._breaker.call(request.tenant_id, ask)
                # An earlier attempt may reach the store after this one.
                if attempts > 1 and isinstance(answer, HoldRefusal):
                    self._release_unheard(request)
                return answer
            except StoreAway as error:
                if self._may_share(request):
                    answer = await self._hold_locally(request)
                    if attempts and isinstance(answer, HoldRefusal):
                        self._release_unheard(request)
                    return answer
                if not self._breaker.is_open or self._breaker.is_away or waited_s >= PATIENCE_S:
                    if attempts:
                        self._release_unheard(request)
                    self._unchecked += 1
                    raise StoreAway(str(error), _hardest(request)) from error
            waited_s += await self._breaker.wait_until_decided(PATIENCE_S - waited_s)

    async def extend(self, hold: Hold) -> bool:
        """Keep a hold alive where it was taken. Raises StoreAway if that is the shared store and it is away."""
        if hold.degraded:
            return await self._local.extend(hold)
        return await self._breaker.call(_tenant_of(hold), lambda: self._shared.extend(hold))

    async def settle(self, hold: Hold, use: Use) -> Settlement:
        """Settle a hold where it was taken. If the shared store is away, the settlement is deferred."""
        if not hold.degraded:
            return await self._settle_shared(hold, use)
        settlement = await self._local.settle(hold, use)
        if settlement.outcome is not SettleOutcome.REPEATED:
            # If an unanswered call has taken a hold, this frees it too.
            await self._settle_shared(hold, use)
        return settlement

    async def usage(self, quotas: Sequence[Quota]) -> tuple[LimitState, ...]:
        """The states of the quotas; while the breaker is open, those of the share. Raises StoreAway."""
        try:
            return await self._breaker.call(quotas[0].scope.tenant_id, lambda: self._shared.usage(quotas))
        except StoreAway:
            if not self._breaker.is_open:
                raise
            return await self._local.usage([self._share_of(quota) for quota in quotas])

    async def restore(self, known: Sequence[Committed]) -> None:
        """Restore the shared store, with one call per tenant. Raises StoreAway."""
        by_tenant: dict[str, list[Committed]] = {}
        for entry in known:
            by_tenant.setdefault(entry.scope.tenant_id, []).append(entry)
        for tenant_id, entries in by_tenant.items():
            await self._breaker.call(tenant_id, partial(self._shared.restore, entries))

    def counts(self) -> Mapping[str, int]:
        """Counts for metrics: `breaker_open` and `unmerged` are current, the others are since the start."""
        return {
            "breaker_open": int(self._breaker.is_open),
            "breaker_opened": self._breaker.opened_total,
            "store_failures": self._breaker.failures_total,
            "degraded": self._degraded,
            "unchecked": self._unchecked,
            "unmerged": len(self._deferred),
            "merged": self._merged,
            "dropped": self._dropped,
        }

    async def aclose(self) -> None:
        """Merge what can be merged, and close the store. A store that is not known to be away is awaited."""
        if self._merger is not None:
            self._merger.cancel()
            await asyncio.wait([self._merger])
            await self._breaker.wait_until_decided(PATIENCE_S)
            await self._merge()
        await self._breaker.aclose()
        await self._shared.aclose()

    async def _hold_locally(self, request: HoldRequest) -> Hold | HoldRefusal:
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

    def _may_share(self, request: HoldRequest) -> bool:
        if not self._breaker.is_open:
            return False
        windows = {demand.quota.scope.measure.window for demand in request.demands}
        return LimitWindow.EVER not in windows and (self._breaker.is_away or windows.isdisjoint(_LONG))

    def _release_unheard(self, request: HoldRequest) -> None:
        """Release the hold that an unanswered call may have taken."""
        self._defer(Hold(request.request_id, 0, request.desired_tokens, None, request.demands, ()), Use())

    def _share_of(self, quota: Quota) -> Quota:
        least = min(1, quota.limit) if quota.scope.measure in _COUNTED_IN_ONES else 0
        return Quota(quota.scope, max(least, int(quota.limit * self._share)))

    async def _settle_shared(self, hold: Hold, use: Use) -> Settlement:
        try:
            return await self._breaker.call(_tenant_of(hold), lambda: self._shared.settle(hold, use))
        except StoreAway:
            self._defer(hold, use)
            return Settlement(SettleOutcome.DEFERRED)

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
        """Repeat the deferred settlements until one fails. That one moves to the end, so it cannot block the others."""
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
        return await self._breaker.call(_tenant_of(hold), lambda: self._shared.settle(hold, use))


def _tenant_of(hold: Hold) -> str:
    return hold.demands[0].quota.scope.tenant_id


def _hardest(request: HoldRequest) -> Scope:
    """The request's scope with the longest window."""
    return max(
        (demand.quota.scope for demand in request.demands), key=lambda scope: _BY_LENGTH.index(scope.measure.window)
    )
