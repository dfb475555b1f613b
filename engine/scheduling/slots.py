"""The rows of per-sequence state in the executor: small numbers, each lent to one running request at a time."""

from collections.abc import Container, Sequence
from heapq import heappop, heappush

from engine.memory.reservation import Reservation


class SequenceSlots:
    """`count` slots, the lowest free one first.

    What is reserved follows the same inequality as blocks do, but for a class that is absent: a free slot is of no use
    to anybody, as a free block is that caches, and one that is needed after all comes back at once, by a preemption.
    """

    def __init__(self, count: int, reserved: Sequence[int]) -> None:
        self._free = list(range(count))
        self._count = count
        self._reservation = Reservation(reserved)

    @property
    def free(self) -> int:
        return len(self._free)

    def room(self, rank: int, absent: Container[int] = ()) -> int:
        """How many slots the class may still take. Can be negative. Nothing is kept for the ranks that are absent."""
        return len(self._free) - sum(self._reservation.unused(above) for above in range(rank) if above not in absent)

    def take(self, rank: int) -> int:
        self._reservation.held[rank] += 1
        return heappop(self._free)

    def give_back(self, slot: int, rank: int) -> None:
        self._reservation.held[rank] -= 1
        heappush(self._free, slot)

    def check(self, taken: Sequence[Sequence[int]]) -> None:
        """Each slot is free, or taken by one of `taken`, the slots of the running requests by rank."""
        slots = sorted([slot for of_rank in taken for slot in of_rank] + self._free)
        assert slots == list(range(self._count)), "a slot is lost, or twice in use"
        assert self._reservation.held == [len(of_rank) for of_rank in taken], "a class's slots are miscounted"
