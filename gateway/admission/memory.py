"""Limits in this process: exact, for one replica."""

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from gateway.admission.decisions import exceeds, refusal_of, state_of
from gateway.admission.model import (
    Committed,
    Demand,
    Hold,
    HoldRefusal,
    HoldRequest,
    LimitState,
    Quota,
    Scope,
    Settlement,
    SettleOutcome,
    Use,
)
from gateway.admission.store import FINISHED_MS, HOLD_TTL_MS
from gateway.admission.windows import MINUTE_MS, LimitWindow, bucket_at, still_counts

MAX_FINISHED = 100_000
"""Limit of remembered requests that are settled or expired."""
SWEPT_PER_CALL = 2
"""Counters that each call checks, to drop empty ones."""


def steady_clock() -> Callable[[], int]:
    """Clock in Unix milliseconds that never jumps: the wall clock at the start, advanced by the monotonic clock."""
    offset_ns = time.time_ns() - time.monotonic_ns()
    return lambda: (time.monotonic_ns() + offset_ns) // 1_000_000


class _State(Enum):
    OPEN = 1
    EXPIRED = 2
    SETTLED = 3


@dataclass(slots=True)
class _Record:
    """State of a request id. `finished_ms` counts once the hold is not open."""

    hold: Hold
    expires_ms: int
    state: _State = _State.OPEN
    finished_ms: int = 0


@dataclass(slots=True)
class _Counter:
    """Held and committed amounts by bucket (sliding window counter). `used`: the sum of all of them."""

    window: LimitWindow
    held: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    last_ms: dict[int, int] = field(default_factory=dict)
    """For a minute: time of the last admission in each bucket."""
    used: int = 0

    def forget_past(self, now_ms: int) -> None:
        """Drop the buckets that have left the window."""
        if self.window is LimitWindow.MINUTE:
            past = [bucket for bucket, last_ms in self.last_ms.items() if last_ms + MINUTE_MS <= now_ms]
        else:
            oldest = bucket_at(self.window, now_ms)
            past = [bucket for amounts in (self.held, self.committed) for bucket in amounts if bucket < oldest]
        for bucket in past:
            self.used -= self.held.pop(bucket, 0) + self.committed.pop(bucket, 0)
            self.last_ms.pop(bucket, None)

    def bring_back(self, now_ms: int) -> None:
        """Clamp admissions in the future, from before the clock was set back, to now."""
        for bucket, last_ms in self.last_ms.items():
            self.last_ms[bucket] = min(last_ms, now_ms)

    def take(self, amount: int, now_ms: int) -> None:
        if not amount:
            return
        bucket = bucket_at(self.window, now_ms)
        self.held[bucket] = self.held.get(bucket, 0) + amount
        self.used += amount
        if self.window is LimitWindow.MINUTE:
            self.last_ms[bucket] = now_ms

    def free(self, bucket: int, amount: int) -> None:
        """Subtract a held amount. A bucket that has left the window is gone."""
        if bucket in self.held:
            self.held[bucket] -= amount
            self.used -= amount
            if not self.held[bucket]:
                del self.held[bucket]

    def commit(self, at_ms: int, amount: int, now_ms: int, *, besides: bool = False) -> None:
        """Add an amount to the bucket of `at_ms`, if that still counts. `besides`: the amount includes what the bucket
        has already."""
        bucket = bucket_at(self.window, at_ms)
        mark = bucket
        if self.window is LimitWindow.MINUTE:
            mark = min(now_ms, max(self.last_ms.get(bucket, at_ms), at_ms))
        if besides:
            amount -= self.committed.get(bucket, 0)
        if amount <= 0 or not still_counts(self.window, mark, now_ms):
            return
        self.committed[bucket] = self.committed.get(bucket, 0) + amount
        self.used += amount
        if self.window is LimitWindow.MINUTE:
            self.last_ms[bucket] = mark

    @property
    def newest(self) -> int | None:
        """Mark of the newest bucket that counts; None: no bucket counts."""
        if self.window is LimitWindow.MINUTE:
            counted = (last for bucket, last in self.last_ms.items() if bucket in self.held or bucket in self.committed)
            return max(counted, default=None)
        return max(self.held.keys() | self.committed.keys(), default=None)

    def amounts(self) -> dict[int, int]:
        """Amounts by the mark of their bucket, in the order in which the buckets leave."""
        sums: dict[int, int] = {}
        for amounts in (self.held, self.committed):
            for bucket, amount in amounts.items():
                mark = self._mark(bucket)
                sums[mark] = sums.get(mark, 0) + amount
        return dict(sorted(sums.items()))

    def _mark(self, bucket: int) -> int:
        return self.last_ms[bucket] if self.window is LimitWindow.MINUTE else bucket


class MemoryStore:
    """A `LimitStore` of one process, for one event loop. No method awaits, so each is atomic.

    Memory is bounded by the open holds, the scopes used in their current window, and `MAX_FINISHED`. `clock`: Unix
    milliseconds; it is expected not to go back.
    """

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock or steady_clock()
        self._counters: OrderedDict[Scope, _Counter] = OrderedDict()
        self._open: dict[tuple[str, str], _Record] = {}
        self._finished: OrderedDict[tuple[str, str], _Record] = OrderedDict()
        self._expiries: list[tuple[int, tuple[str, str]]] = []

    async def hold(self, request: HoldRequest) -> Hold | HoldRefusal:
        """As in `LimitStore`."""
        now = self._now()
        id = (request.tenant_id, request.request_id)
        known = self._open.get(id) or self._finished.get(id)
        if known is not None:
            return known.hold
        counters = [self._read(demand.quota.scope, now) for demand in request.demands]
        refusal = self._refusal(request, counters, now)
        if refusal is not None:
            return refusal
        granted, bound_by = _grant(request, counters)
        for demand, counter in zip(request.demands, counters, strict=True):
            counter.take(demand.amount(granted), now)
        states = _states([demand.quota for demand in request.demands], counters, now)
        hold = Hold(request.request_id, now, granted, bound_by, request.demands, states)
        self._open[id] = _Record(hold, now + HOLD_TTL_MS)
        heapq.heappush(self._expiries, (now + HOLD_TTL_MS, id))
        return hold

    async def extend(self, hold: Hold) -> bool:
        """As in `LimitStore`."""
        now = self._now()
        id = _id(hold)
        record = self._open.get(id)
        if record is None:
            return False
        record.expires_ms = now + HOLD_TTL_MS
        heapq.heappush(self._expiries, (record.expires_ms, id))
        return True

    async def settle(self, hold: Hold, use: Use) -> Settlement:
        """As in `LimitStore`."""
        now = self._now()
        id = _id(hold)
        record = self._open.pop(id, None) or self._finished.pop(id, None)
        outcome = SettleOutcome.UNKNOWN
        if record is None:
            record = _Record(hold, now)
        elif record.state is _State.OPEN:
            outcome = SettleOutcome.SETTLED
            self._free(record)
        elif record.state is _State.EXPIRED:
            outcome = SettleOutcome.LATE
        else:
            outcome = SettleOutcome.REPEATED
        if outcome is not SettleOutcome.REPEATED:
            self._commit(hold, use, now)
        self._finish(id, record, _State.SETTLED, now)
        return Settlement(outcome, outcome is not SettleOutcome.REPEATED and exceeds(hold, use))

    async def usage(self, quotas: Sequence[Quota]) -> tuple[LimitState, ...]:
        """As in `LimitStore`."""
        now = self._now()
        return _states(quotas, [self._read(quota.scope, now) for quota in quotas], now)

    async def restore(self, known: Sequence[Committed]) -> None:
        """As in `LimitStore`."""
        now = self._now()
        for entry in known:
            self._counter(entry.scope, now).commit(entry.at_ms, entry.amount, now, besides=True)

    def counts(self) -> Mapping[str, int]:
        """As in `LimitStore`: none."""
        return {}

    async def aclose(self) -> None:
        """As in `LimitStore`: there is nothing to close."""
        pass

    def check(self) -> None:
        """Assert the invariants: every counter's `used` is the sum of its buckets, and the held amounts are those of
        the open requests."""
        held: dict[tuple[Scope, int], int] = {}
        for record in self._open.values():
            assert record.state is _State.OPEN
            for scope, bucket, amount in _charges(record.hold):
                held[scope, bucket] = held.get((scope, bucket), 0) + amount
        for scope, counter in self._counters.items():
            assert counter.used == sum(counter.held.values()) + sum(counter.committed.values())
            for bucket, amount in counter.held.items():
                assert amount == held[scope, bucket]

    def _now(self) -> int:
        """The time, after all holds that are due by then have expired."""
        now = self._clock()
        while self._expiries and self._expiries[0][0] <= now:
            expiry, id = heapq.heappop(self._expiries)
            record = self._open.get(id)
            if record is not None and record.expires_ms == expiry:
                del self._open[id]
                self._free(record)
                self._finish(id, record, _State.EXPIRED, now)
        while self._finished:
            oldest = next(iter(self._finished.values()))
            if len(self._finished) <= MAX_FINISHED and oldest.finished_ms + FINISHED_MS > now:
                break
            self._finished.popitem(last=False)
        for _ in range(min(SWEPT_PER_CALL, len(self._counters))):
            scope, counter = self._counters.popitem(last=False)
            counter.forget_past(now)
            if counter.held or counter.committed or counter.last_ms:
                self._counters[scope] = counter
        return now

    def _counter(self, scope: Scope, now: int) -> _Counter:
        counter = self._counters.get(scope)
        if counter is None:
            counter = self._counters[scope] = _Counter(scope.measure.window)
        counter.forget_past(now)
        return counter

    def _read(self, scope: Scope, now: int) -> _Counter:
        counter = self._counter(scope, now)
        counter.bring_back(now)
        return counter

    def _refusal(self, request: HoldRequest, counters: Sequence[_Counter], now: int) -> HoldRefusal | None:
        blocked = [
            (demand.quota, _blocking_mark(demand.quota.limit, need, counter.amounts()))
            for demand, counter in zip(request.demands, counters, strict=True)
            if (need := demand.amount(request.minimum_tokens)) > demand.quota.limit - counter.used
        ]
        if not blocked:
            return None
        return refusal_of(blocked, _states([demand.quota for demand in request.demands], counters, now), now)

    def _free(self, record: _Record) -> None:
        for scope, bucket, amount in _charges(record.hold):
            counter = self._counters.get(scope)
            if counter is not None:
                counter.free(bucket, amount)

    def _commit(self, hold: Hold, use: Use, now: int) -> None:
        for demand in hold.demands:
            scope = demand.quota.scope
            if amount := use.of(scope.measure):
                self._counter(scope, now).commit(hold.at_ms, amount, now)

    def _finish(self, id: tuple[str, str], record: _Record, state: _State, now: int) -> None:
        record.state = state
        record.finished_ms = now
        self._finished[id] = record


def _blocking_mark(limit: int, need: int, amounts: Mapping[int, int]) -> int | None:
    """Mark of the bucket whose leaving makes room for `need`. None: `need` exceeds the limit."""
    if need > limit:
        return None
    used = sum(amounts.values())
    for mark, amount in amounts.items():
        used -= amount
        if used + need <= limit:
            return mark
    raise AssertionError("what fits an empty window must fit one day")


def _grant(request: HoldRequest, counters: Sequence[_Counter]) -> tuple[int, Scope | None]:
    """The tokens that every quota has room for, and the scope that cut them. There is room for the minimum."""
    granted, bound_by = request.desired_tokens, None
    for demand, counter in zip(request.demands, counters, strict=True):
        if demand.per_token:
            room = _room(demand, counter.used)
            if room < granted:
                granted, bound_by = room, demand.quota.scope
    return granted, bound_by


def _room(demand: Demand, used: int) -> int:
    return (demand.quota.limit - used - demand.fixed) // demand.per_token


def _states(quotas: Sequence[Quota], counters: Sequence[_Counter], now: int) -> tuple[LimitState, ...]:
    return tuple(
        state_of(quota, counter.used, sum(counter.held.values()), counter.newest, now)
        for quota, counter in zip(quotas, counters, strict=True)
    )


def _charges(hold: Hold) -> list[tuple[Scope, int, int]]:
    """Scope, bucket and amount of each demand of a hold."""
    return [
        (scope := demand.quota.scope, bucket_at(scope.measure.window, hold.at_ms), demand.amount(hold.granted_tokens))
        for demand in hold.demands
    ]


def _id(hold: Hold) -> tuple[str, str]:
    return hold.demands[0].quota.scope.tenant_id, hold.request_id
