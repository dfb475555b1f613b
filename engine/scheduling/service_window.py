"""How evenly a class was served of late: service by tenant in a sliding window, and Jain's index over it."""

from collections import Counter, deque
from collections.abc import Collection, Mapping

WINDOW_NS = 60 * 1_000_000_000
SLOTS = 12
_SLOT_NS = WINDOW_NS // SLOTS


class ServiceWindow:
    """The service that the tenants of one class have received within `WINDOW_NS`, which slides by a slot.

    `add` is for the thread that steps. `by_tenant` may be called from any: what it copies is copied in one go.
    Times never go back.
    """

    def __init__(self) -> None:
        self._slots: deque[tuple[int, dict[str, int]]] = deque(maxlen=SLOTS)
        """The number of a slot of time, and its service by tenant; the newest last, none empty."""

    def add(self, now_ns: int, services: Mapping[str, int]) -> None:
        """Book what tenants received in a step. O(tenants in the step)."""
        if not services:
            return
        number = now_ns // _SLOT_NS
        if not self._slots or self._slots[-1][0] != number:
            self._slots.append((number, {}))
        slot = self._slots[-1][1]
        for tenant, service in services.items():
            slot[tenant] = slot.get(tenant, 0) + service

    def by_tenant(self, now_ns: int) -> Counter[str]:
        """The service of each tenant that had any. O(tenants * SLOTS)."""
        oldest = now_ns // _SLOT_NS - SLOTS + 1
        total: Counter[str] = Counter()
        for number, services in list(self._slots):
            if number >= oldest:
                total.update(services.copy())
        return total


def jain_index(shares: Collection[int]) -> float:
    """(sum x)^2 / (n * sum x^2): 1 where all have the same, 1/n where one of n has everything; 1 of nothing at all."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
