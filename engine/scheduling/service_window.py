"""The fairness of a class's recent service: service by tenant in a sliding window, and Jain's index over it (Jain, Chiu
and Hawe 1984, A Quantitative Measure of Fairness, DEC-TR-301)."""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

WINDOW_NS = 60 * 1_000_000_000
SLOTS = 12
_SLOT_NS = WINDOW_NS // SLOTS

FORGOTTEN_A_STEP = 256
"""Entries of expired slots that are subtracted from the sums per step."""


@dataclass(slots=True)
class _Served:
    """A tenant's service in the window, and the number of time slots that contribute to it."""

    service: int = 0
    slots: int = 0


class ServiceWindow:
    """The service of one class's tenants within `WINDOW_NS`, in time slots, and the tenants that wait. All results are
    running sums, so queries are O(1).

    Only the engine thread writes. `active_tenants` and `fairness` may be called from any thread; they are as of the
    last step, until a whole window has passed since. Times must not decrease.
    """

    def __init__(self) -> None:
        self._slots: deque[tuple[int, dict[str, int]]] = deque()
        """Number and service by tenant of each time slot; the newest last, none empty."""
        self._leaving: deque[Iterator[tuple[str, int]]] = deque()
        """The entries of expired slots that are not subtracted yet."""
        self._served: dict[str, _Served] = {}
        self._sum = 0
        self._squares = 0
        self._waiting: Counter[str] = Counter()
        self._unserved = 0
        """Waiting tenants without service in the window."""

    def add(self, now_ns: int, services: Mapping[str, int]) -> None:
        """Record the service of a step by tenant. O(tenants in the step + FORGOTTEN_A_STEP)."""
        number = now_ns // _SLOT_NS
        while self._slots and self._slots[0][0] <= number - SLOTS:
            self._leaving.append(iter(self._slots.popleft()[1].items()))
        self._forget()
        if not services:
            return
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
        slot = self._slots[-1][1]
        for tenant, service in services.items():
            self._change(tenant, service, slots=tenant not in slot)
            slot[tenant] = slot.get(tenant, 0) + service

    def add_waiting(self, tenant: str) -> None:
        """A request of the tenant begins to wait."""
        self._waiting[tenant] += 1
        if self._waiting[tenant] == 1 and tenant not in self._served:
            self._unserved += 1

    def remove_waiting(self, tenant: str) -> None:
        """A request of the tenant stops waiting."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._unserved -= tenant not in self._served

    def active_tenants(self, now_ns: int) -> int:
        """The number of tenants that were served in the window or wait now."""
        return len(self._waiting) if self._has_passed(now_ns) else len(self._served) + self._unserved

    def fairness(self, now_ns: int) -> float:
        """Jain's index of the service of the active tenants."""
        if self._has_passed(now_ns):
            return 1.0
        return _index(self._sum, self._squares, len(self._served) + self._unserved)

    def check(self) -> None:
        """Assert that the running sums match the slots."""
        rest = [list(items) for items in self._leaving]
        self._leaving = deque(map(iter, rest))
        served: dict[str, _Served] = {}
        for items in [*rest, *(slot.items() for _, slot in self._slots)]:
            for tenant, service in items:
                known = served.setdefault(tenant, _Served())
                known.service += service
                known.slots += 1
        assert served == self._served, "what tenants received is miscounted"
        services = [known.service for known in served.values()]
        squares = sum(service * service for service in services)
        assert (self._sum, self._squares) == (sum(services), squares), "sums are wrong"
        assert self._unserved == len(self._waiting.keys() - served.keys()), "tenants that wait are miscounted"

    def _forget(self) -> None:
        left = FORGOTTEN_A_STEP
        while self._leaving and left:
            items = list(islice(self._leaving[0], left))
            for tenant, service in items:
                self._change(tenant, -service, slots=-1)
            if len(items) < left:
                self._leaving.popleft()
            left -= len(items)

    def _change(self, tenant: str, service: int, *, slots: int) -> None:
        known = self._served.get(tenant)
        if known is None:
            known = self._served[tenant] = _Served()
            self._unserved -= tenant in self._waiting
        self._sum += service
        self._squares += service * (2 * known.service + service)
        known.service += service
        known.slots += slots
        if not known.slots:
            del self._served[tenant]
            self._unserved += tenant in self._waiting

    def _has_passed(self, now_ns: int) -> bool:
        newest = self._slots[-1][0] if self._slots else -SLOTS
        return newest <= now_ns // _SLOT_NS - SLOTS


def jain_index(shares: Collection[int]) -> float:
    """Jain's fairness index, (sum x)^2 / (n * sum x^2): 1 where all shares are equal, 1/n where one of n has all.

    1 where all shares are zero.
    """
    return _index(sum(shares), sum(share * share for share in shares), len(shares))


def _index(total: int, squares: int, count: int) -> float:
    return total**2 / (count * squares) if squares else 1.0
