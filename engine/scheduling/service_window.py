"""How evenly a class was served of late: service by tenant in a sliding window, and Jain's index over it."""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

WINDOW_NS = 60 * 1_000_000_000
SLOTS = 12
_SLOT_NS = WINDOW_NS // SLOTS

FORGOTTEN_A_STEP = 256
"""Of the tenants of a slot of time that has left the window, so many are taken out of the sums in a step."""


@dataclass(slots=True)
class _Served:
    """A tenant's service in the window, and how many slots of time have some of it."""

    service: int = 0
    slots: int = 0


class ServiceWindow:
    """The service that the tenants of one class have received within `WINDOW_NS`, which slides by a slot, and which of
    them wait. Everything is a running sum: what is asked for does not depend on how many there are.

    All changes are for the thread that steps; `active_tenants` and `fairness` may be called from any, and are as of the
    last step, until a whole window has passed since. Times never go back.
    """

    def __init__(self) -> None:
        self._slots: deque[tuple[int, dict[str, int]]] = deque()
        """The number of a slot of time, and its service by tenant; the newest last, none empty."""
        self._leaving: deque[Iterator[tuple[str, int]]] = deque()
        """What is left of the slots that are in the window no more."""
        self._served: dict[str, _Served] = {}
        self._sum = 0
        self._squares = 0
        self._waiting: Counter[str] = Counter()
        self._unserved = 0
        """Tenants that wait and were not served in the window."""

    def add(self, now_ns: int, services: Mapping[str, int]) -> None:
        """Book what tenants received in a step. O(tenants in the step + FORGOTTEN_A_STEP)."""
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

    def wait(self, tenant: str) -> None:
        """One of the tenant's requests waits."""
        self._waiting[tenant] += 1
        if self._waiting[tenant] == 1 and tenant not in self._served:
            self._unserved += 1

    def leave(self, tenant: str) -> None:
        """One that waited does so no more."""
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._unserved -= tenant not in self._served

    def active_tenants(self, now_ns: int) -> int:
        """Those that were served in the window, or wait now."""
        return len(self._waiting) if self._has_passed(now_ns) else len(self._served) + self._unserved

    def fairness(self, now_ns: int) -> float:
        """Jain's index of the service of the active tenants."""
        if self._has_passed(now_ns):
            return 1.0
        return _index(self._sum, self._squares, len(self._served) + self._unserved)

    def check(self) -> None:
        """The sums are those of what they are made of."""
        rest = [list(items) for items in self._leaving]
        self._leaving = deque(map(iter, rest))
        served: dict[str, _Served] = {}
        for items in [*rest, *(slot.items() for _, slot in self._slots)]:
            for tenant, service in items:
                known = served.setdefault(tenant, _Served())
                known.service += service
                known.slots += 1
        assert served == self._served, "what tenants received is miscounted"
        services = [each.service for each in served.values()]
        assert (self._sum, self._squares) == (sum(services), sum(each * each for each in services)), "sums are wrong"
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
    """(sum x)^2 / (n * sum x^2): 1 where all have the same, 1/n where one of n has everything; 1 of nothing at all."""
    return _index(sum(shares), sum(share * share for share in shares), len(shares))


def _index(total: int, squares: int, count: int) -> float:
    return total**2 / (count * squares) if squares else 1.0
