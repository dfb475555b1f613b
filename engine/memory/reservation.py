"""What of a scarce thing, KV blocks or sequence slots, is kept for the higher classes."""

from collections.abc import Sequence


class Reservation:
    """The one inequality: a class may take n only while free - n >= `unused_above` of it.

    Classes are ranks, 0 the highest. What a class has reserved and does not hold is out of reach of the ranks below;
    what it holds beyond that is like anyone's. A reserve is a promise about what is free, so nothing lies idle for it.
    """

    def __init__(self, reserved: Sequence[int]) -> None:
        self.reserved = tuple(reserved)
        self.held = [0] * len(self.reserved)

    def unused(self, rank: int) -> int:
        """What the rank could still take of its own reserve."""
        return max(0, self.reserved[rank] - self.held[rank])

    def unused_above(self, rank: int) -> int:
        """What the rank has to leave alone."""
        return sum(map(self.unused, range(rank)))

    def missing(self, rank: int, free: int) -> int:
        """What the rank was promised and could not take now, of `free`: 0, unless somebody took what was not theirs.

        Ranks above may take from its reserve: what they hold beyond their own is no breach.
        """
        beyond_own = sum(max(0, self.held[above] - self.reserved[above]) for above in range(rank))
        short = self.unused_above(rank + 1) - free - beyond_own
        return max(0, min(self.unused(rank), short))

    def reserved_above(self, rank: int) -> int:
        """What the rank can never have."""
        return sum(self.reserved[:rank])
