"""Sequence slots: the indices of per-sequence state in the executor, each held by one running request at a time."""

from collections.abc import Container, Sequence
from heapq import heappop, heappush

from engine.memory.reservation import Reservation


class SequenceSlots:
    """`count` slots. The lowest free slot is taken first.

    Reserves follow the same inequality as those of blocks, but an inactive class has none. An idle slot is useless,
    unlike a free block, which caches KV, and a preemption frees a slot at once when the class needs one.
    """

    def __init__(self, count: int, reserved: Sequence[int]) -> None:
        self._free = list(range(count))
        self._count = count
        self._reservation = Reservation(reserved)

    @property
    def free(self) -> int:
        return len(self._free)

    def available(self, rank: int, inactive: Container[int] = ()) -> int:
        """Slots that the class may still take. Can be negative. Nothing is kept for the `inactive` ranks."""
        return len(self._free) - sum(self._reservation.unused(above) for above in range(rank) if above not in inactive)

    def take(self, rank: int) -> int:
        self._reservation.held[rank] += 1
        return heappop(self._free)

    def give_back(self, slot: int, rank: int) -> None:
        self._reservation.held[rank] -= 1
        heappush(self._free, slot)

    def check(self, taken: Sequence[Sequence[int]]) -> None:
        """Assert that each slot is free or in `taken`, the slots of the running requests by rank."""
        slots = sorted([slot for of_rank in taken for slot in of_rank] + self._free)
        assert slots == list(range(self._count)), "a slot is lost, or twice in use"
        assert self._reservation.held == [len(of_rank) for of_rank in taken], "a class's slots are miscounted"
