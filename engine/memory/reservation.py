"""Reserves of KV blocks and sequence slots for the higher classes."""

from collections.abc import Sequence


class Reservation:
    """One inequality: a class may take n units only while free - n >= `unused_above(rank)`.

    Classes are ranks, 0 the highest. The unused part of a class's reserve is unavailable to the ranks below; what it
    holds beyond its reserve has no privilege. A reserve concerns only the number of free units, so none is set aside.
    """

    def __init__(self, reserved: Sequence[int]) -> None:
        self.reserved = tuple(reserved)
        self.held = [0] * len(self.reserved)

    def unused(self, rank: int) -> int:
        """The part of the rank's own reserve that it does not hold."""
        return max(0, self.reserved[rank] - self.held[rank])

    def unused_above(self, rank: int) -> int:
        """The unused reserves of the ranks above, which the rank must leave free."""
        return sum(map(self.unused, range(rank)))

    def missing(self, rank: int, free: int) -> int:
        """The part of the rank's reserve that `free` units do not cover: 0, unless the inequality was violated.

        Ranks above may take from its reserve, so what they hold beyond their own is not a violation.
        """
        beyond_own = sum(max(0, self.held[above] - self.reserved[above]) for above in range(rank))
        short = self.unused_above(rank + 1) - free - beyond_own
        return max(0, min(self.unused(rank), short))

    def reserved_above(self, rank: int) -> int:
        """The total reserve of the ranks above, which the rank can never have."""
        return sum(self.reserved[:rank])
