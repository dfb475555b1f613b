"""The limiter: hold before the work, settle after it."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.admission.errors import QuotaExceeded
from gateway.admission.model import (
    MAX_AMOUNT,
    Committed,
    Demand,
    Hold,
    HoldRefusal,
    HoldRequest,
    LimitState,
    Measure,
    Quota,
    Settlement,
    SettleOutcome,
    Use,
)
from gateway.admission.store import LimitStore, StoreAway

HEARTBEAT_S = 10.0
"""Interval of heartbeats in seconds: a third of a hold's lifetime, so two in a row may fail."""

_log = logging.getLogger(__name__)


class Limiter:
    """Takes holds, keeps them alive and settles them. One per process, on one event loop.

    A hold ends with `settle` or `release`, which belong in a `finally`. If this process dies, the hold expires. Without
    demands (nothing is limited) no store is called.
    """

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._open: dict[str, Hold] = {}
        self._heart: asyncio.Task[None] | None = None
        self._settling: set[asyncio.Task[Any]] = set()
        self._admitted = 0
        self._cut = 0
        self._refused: Counter[Measure] = Counter()
        self._outcomes: Counter[SettleOutcome] = Counter()
        self._exceeded = 0

    async def hold(
        self, request_id: str, demands: Sequence[Demand], *, minimum_tokens: int, desired_tokens: int
    ) -> Hold:
        """Take all demands at once. The answer must end at `granted_tokens`.

        `request_id`: the server's own id, never one chosen by a client, as its second use is free. `minimum_tokens`:
        least grant that is of use. `desired_tokens`: largest grant.

        Raises:
            QuotaExceeded: not even the minimum fits; nothing is held.
            StoreAway: the store does not answer, and there is no local share.
        """
        if not demands:
            return Hold(request_id, 0, desired_tokens, None, (), ())
        request = _in_range(request_id, demands, minimum_tokens, desired_tokens)
        if isinstance(request, HoldRefusal):
            self._refused[request.quota.scope.measure] += 1
            raise QuotaExceeded(request)
        try:
            answer = await self._store.hold(request)
        except asyncio.CancelledError:
            # The store may have taken the hold. (If it takes it only after this release, the hold expires.)
            unheard = Hold(request_id, 0, desired_tokens, None, request.demands, ())
            self._track(asyncio.create_task(self._free(unheard)))
            raise
        if isinstance(answer, HoldRefusal):
            self._refused[answer.quota.scope.measure] += 1
            raise QuotaExceeded(answer)
        self._admitted += 1
        self._cut += answer.bound_by is not None
        self._open[request_id] = answer
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())
        return answer

    async def extend(self, hold: Hold) -> bool:
        """Keep a hold alive; the heartbeat calls it for all open holds. False: the hold has expired or is settled."""
        return bool(hold.demands) and await self._store.extend(hold)

    async def settle(self, hold: Hold, used_tokens: int, used_nanodollars: int = 0) -> Settlement:
        """Commit what was used (tokens: prompt and answer together) and free the rest. Only the first call for a hold
        counts. Once started it completes, even if the caller is cancelled."""
        return await self._settle(hold, Use(1, used_tokens, used_nanodollars))

    async def release(self, hold: Hold) -> Settlement:
        """Free a hold whose request did not take place. Nothing is committed, not even the request."""
        return await self._settle(hold, Use())

    async def usage(self, quotas: Sequence[Quota]) -> tuple[LimitState, ...]:
        """The states of one tenant's quotas, without a request."""
        return await self._store.usage(quotas) if quotas else ()

    async def restore(self, known: Sequence[Committed]) -> None:
        """Set the counters to what the books say this process has used. Raises StoreAway."""
        await self._store.restore(known)

    def counts(self) -> Mapping[str, int]:
        """Counts for metrics: `open` is current, the others are since the start."""
        refused = {f"refused_{measure.value}": self._refused[measure] for measure in Measure}
        outcomes = {outcome.value: self._outcomes[outcome] for outcome in SettleOutcome}
        return {
            "open": len(self._open),
            "admitted": self._admitted,
            "cut": self._cut,
            "exceeded": self._exceeded,
            **refused,
            **outcomes,
            **self._store.counts(),
        }

    async def aclose(self) -> None:
        """Stop the heartbeat, finish the settlements and close the store."""
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.wait([self._heart])
        if self._settling:
            await asyncio.wait(self._settling)
        await self._store.aclose()

    async def _settle(self, hold: Hold, use: Use) -> Settlement:
        self._open.pop(hold.request_id, None)
        if not hold.demands:
            return Settlement(SettleOutcome.SETTLED)
        task = asyncio.create_task(self._settle_in_store(hold, use))
        self._track(task)
        return await asyncio.shield(task)

    async def _free(self, hold: Hold) -> None:
        with contextlib.suppress(StoreAway):  # then the hold expires
            await self._settle_in_store(hold, Use())

    def _track(self, task: asyncio.Task[Any]) -> None:
        """Keep the task until it is done; `aclose` awaits it."""
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    async def _settle_in_store(self, hold: Hold, use: Use) -> Settlement:
        settlement = await self._store.settle(hold, use)
        self._outcomes[settlement.outcome] += 1
        self._exceeded += settlement.exceeded
        if settlement.exceeded or settlement.outcome is SettleOutcome.LATE:
            _log.warning(
                "hold of request %s settled out of order: %s, exceeded: %s",
                hold.request_id,
                settlement.outcome.value,
                settlement.exceeded,
            )
        return settlement

    async def _beat(self) -> None:
        """Extend all open holds until there are none."""
        try:
            while self._open:
                await asyncio.sleep(HEARTBEAT_S)
                for hold in list(self._open.values()):
                    if hold.request_id in self._open:
                        with contextlib.suppress(StoreAway):  # the next beat is within the hold's lifetime
                            await self._store.extend(hold)
        finally:
            self._heart = None


def _in_range(
    request_id: str, demands: Sequence[Demand], minimum_tokens: int, desired_tokens: int
) -> HoldRequest | HoldRefusal:
    """The request with its tokens clamped to what stores can count. No limit exceeds `MAX_AMOUNT`, so a minimum above
    that is refused for good."""
    for demand in demands:
        if demand.amount(minimum_tokens) > MAX_AMOUNT:
            return HoldRefusal(demand.quota, None, ())
        if demand.per_token:
            desired_tokens = min(desired_tokens, (MAX_AMOUNT - demand.fixed) // demand.per_token)
    return HoldRequest(request_id, tuple(demands), minimum_tokens, desired_tokens)
