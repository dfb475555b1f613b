"""The waiting requests of one class, and whose turn it is: the virtual token counter (VTC, arXiv 2401.00588)."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace

from engine.request import Request
from engine.scheduling.order import OrderedQueue, TurnKey, order_key, turn_key

INPUT_SERVICE = 1
OUTPUT_SERVICE = 2
"""What a token counts: an input token that is computed (one from the cache counts nothing), and an output token."""

IDLE_TENANTS = 1024
"""So many tenants without waiting requests are remembered before those that nothing has to be remembered of go."""
_SPARE_ENTRIES = 16
"""Stale entries of the heap that are left alone, however few tenants wait."""


@dataclass(slots=True)
class _Tenant:
    counter: float = 0.0
    waiting: OrderedQueue = field(default_factory=OrderedQueue)
    entry: tuple[TurnKey, str] | None = None
    """Its newest entry in the heap. Its key is never greater than the present one."""


class FairQueue:
    """Serves the tenant that has received the least; inside a tenant, first come, first served.

    A tenant's counter grows by the service that it receives over `weight`. One whose queue was empty is lifted to
    the least counter of those that wait, so that nobody saves up turns while idle. Then two tenants that both
    always wait are served alike, up to 2 * max(longest input, 2 * tokens of KV that fit) of service.

    The heap is lazy: counters only grow, so an entry is too small at worst, and is put right when it comes up. Entries
    that stand for nothing any more are dropped when they come up, or when there are more of them than of the others.
    Each operation is O(log tenants), amortised.
    """

    def __init__(self, weight: float = 1.0) -> None:
        self._weight = weight
        self._tenants: dict[str, _Tenant] = {}
        self._heap: list[tuple[TurnKey, str]] = []
        self._size = 0
        self._waiting_tenants = 0
        self._last_waiting: str | None = None
        """The tenant that was the last to wait, where nobody does now."""
        self._sweep_at = IDLE_TENANTS

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Request]:
        """All that wait, by tenant and not by turn."""
        for tenant in self._tenants.values():
            yield from tenant.waiting

    def counter(self, tenant: str) -> float:
        """The service that the tenant has received, over the weight."""
        known = self._tenants.get(tenant)
        return known.counter if known else 0.0

    def head_but(self, tenants: Collection[str]) -> Request | None:
        """The request whose turn it is where these tenants are passed. O((1 + passed) * log tenants)."""
        passed = []
        while (first := self.head()) is not None and first.tenant in tenants:
            passed.append(heappop(self._heap))
        for entry in passed:
            heappush(self._heap, entry)
        return first

    def head(self) -> Request | None:
        """The request whose turn it is."""
        heap = self._heap
        while heap:
            entry = heap[0]
            tenant = self._tenants.get(entry[1])
            if tenant is None or tenant.entry is not entry:
                heappop(heap)  # a newer entry stands for it
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
        """Each tenant's queue is in order, and the first to be served has the smallest key."""
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
        """O(1), amortised: as many entries became stale since it was done last."""
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
        """The least counter of the tenants that wait; when none does, that of the last one that did."""
        head = self.head()
        name = self._last_waiting if head is None else head.tenant
        return 0.0 if name is None else self._tenants[name].counter

    def _forget_idle(self) -> None:
        """A tenant without waiting requests, whose counter a newcomer would be lifted to, need not be remembered."""
        least = self._least()
        self._tenants = {
            name: tenant
            for name, tenant in self._tenants.items()
            if tenant.waiting or tenant.counter > least or name == self._last_waiting
        }
        self._sweep_at = max(IDLE_TENANTS, 2 * len(self._tenants))
