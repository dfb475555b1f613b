"""The waiting requests of one class, in fair order: the virtual token counter (VTC) of Sheng et al. 2024, Fairness in
Serving Large Language Models (arXiv 2401.00588)."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from engine.request import Request
from engine.scheduling.order import OrderedQueue, TurnKey, order_key, turn_key

INPUT_SERVICE = 1
OUTPUT_SERVICE = 2
"""Service per token: of an input token that is computed (a cached one is free), and of an output token."""

IDLE_TENANTS = 1024
"""Tenants to remember before idle ones without a counter above the minimum are forgotten."""
_SPARE_ENTRIES = 16
"""Stale heap entries that are tolerated however few tenants wait."""


@dataclass(slots=True)
class _Tenant:
    counter: float = 0.0
    waiting: OrderedQueue = field(default_factory=OrderedQueue)
    entry: tuple[TurnKey, str] | None = None
    """The tenant's newest heap entry. Its key is never greater than the tenant's current key."""


class FairQueue:
    """Serves the tenant with the least service; within a tenant, first come, first served.

    A tenant's counter grows by its service divided by `weight`. When its queue was empty, the counter is lifted to the
    minimum of the waiting tenants, so that idle tenants accumulate no credit. The service of two tenants that both
    always wait differs by at most 2 * max(longest input, 2 * tokens of KV that fit) (VTC's bound).

    The heap is lazy: counters only grow, so an entry's key is at worst too small and is corrected when it surfaces.
    Stale entries are dropped when they surface, or when they outnumber the others. Each operation is O(log tenants),
    amortised.
    """

    def __init__(self, weight: float = 1.0) -> None:
        self._weight = weight
        self._tenants: dict[str, _Tenant] = {}
        self._heap: list[tuple[TurnKey, str]] = []
        self._size = 0
        self._waiting_tenants = 0
        self._last_waiting: str | None = None
        """The last tenant that waited, when the queue is empty."""
        self._sweep_at = IDLE_TENANTS

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        """All waiting requests, grouped by tenant, not in serving order."""
        for tenant in self._tenants.values():
            yield from tenant.waiting

    def counter(self, tenant: str) -> float:
        """The service that the tenant has received, divided by the weight."""
        known = self._tenants.get(tenant)
        return known.counter if known else 0.0

    def head_except(self, tenants: Collection[str]) -> Request | None:
        """The first request of any tenant but these. O((1 + skipped) * log tenants)."""
        skipped = []
        while (first := self.head()) is not None and first.tenant in tenants:
            skipped.append(heappop(self._heap))
        for entry in skipped:
            heappush(self._heap, entry)
        return first

    def head(self) -> Request | None:
        """The first request."""
        heap = self._heap
        while heap:
            entry = heap[0]
            tenant = self._tenants.get(entry[1])
            if tenant is None or tenant.entry is not entry:
                heappop(heap)  # replaced by a newer entry
            elif not tenant.waiting:
                tenant.entry = None
                heappop(heap)
            else:
                first = tenant.waiting[0]
                key = turn_key(tenant.counter, first)
                if key == entry[0]:
                    return first
                tenant.entry = (key, entry[1])
                heapreplace(heap, tenant.entry)
        return None

    def add(self, request: Request) -> None:
        name = request.tenant
        tenant = self._tenant(name)
        if not tenant.waiting:
            tenant.counter = max(tenant.counter, self._least())
            self._waiting_tenants += 1
        tenant.waiting.add(request)
        self._size += 1
        if tenant.waiting[0] is request:
            tenant.entry = (turn_key(tenant.counter, request), name)
            heappush(self._heap, tenant.entry)
            self._bound_heap()

    def remove(self, request: Request) -> None:
        tenant = self._tenants[request.tenant]
        tenant.waiting.remove(request)
        self._size -= 1
        self._waiting_tenants -= not tenant.waiting
        if not self._size:
            self._last_waiting = request.tenant
        self._bound_heap()

    def charge(self, services: Mapping[str, int]) -> None:
        """Add the service that each tenant has received in a step."""
        for name, service in services.items():
            self._tenant(name).counter += service / self._weight

    def check(self) -> None:
        """Assert that each tenant's queue is in order, and that `head` has the smallest key."""
        waiting = [tenant for tenant in self._tenants.values() if tenant.waiting]
        assert self._size == sum(len(tenant.waiting) for tenant in waiting), "a waiting request is lost"
        assert self._waiting_tenants == len(waiting), "the tenants that wait are miscounted"
        assert len(self._heap) <= 2 * self._waiting_tenants + _SPARE_ENTRIES, "the heap keeps what is stale"
        for name, tenant in self._tenants.items():
            tenant.waiting.check()
            if tenant.waiting:
                assert tenant.entry is not None, f"tenant {name} waits for a turn that never comes"
                assert tenant.entry[0] <= turn_key(tenant.counter, tenant.waiting[0]), f"{name} is in for a late turn"
        if waiting:
            first = min(waiting, key=lambda tenant: turn_key(tenant.counter, tenant.waiting[0])).waiting[0]
            head = self.head()
            assert head is not None
            assert order_key(head) == order_key(first), f"it is the turn of {first.id}, not of {head.id}"

    def _bound_heap(self) -> None:
        """Drop stale entries. O(1) amortised: as many entries became stale since the last time."""
        if len(self._heap) <= 2 * self._waiting_tenants + _SPARE_ENTRIES:
            return
        kept: list[tuple[TurnKey, str]] = []
        for entry in self._heap:
            tenant = self._tenants.get(entry[1])
            if tenant is None or tenant.entry is not entry:
                continue
            if tenant.waiting:
                kept.append(entry)
            else:
                tenant.entry = None
        heapify(kept)
        self._heap = kept

    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= self._sweep_at:
                self._forget_idle()
            tenant = self._tenants[name] = _Tenant(counter=self._least())
        return tenant

    def _least(self) -> float:
        """The minimum counter of the waiting tenants; without any, the counter of the last one that waited."""
        head = self.head()
        name = self._last_waiting if head is None else head.tenant
        return 0.0 if name is None else self._tenants[name].counter

    def _forget_idle(self) -> None:
        """Forget idle tenants with a counter of at most the minimum, to which a new tenant's is lifted anyway."""
        least = self._least()
        self._tenants = {
            name: tenant
            for name, tenant in self._tenants.items()
            if tenant.waiting or tenant.counter > least or name == self._last_waiting
        }
        self._sweep_at = max(IDLE_TENANTS, 2 * len(self._tenants))
