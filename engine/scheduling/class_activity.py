"""Tracks which service classes are active. Capacity reserved for a class costs the classes below throughput, so a class
keeps its slots and its short steps only while it receives requests.
"""

ACTIVE_NS = 60 * 1_000_000_000
"""A class is active for this long after its last request."""


class ClassActivity:
    """The time of the last request of each class, by rank."""

    def __init__(self, classes: int) -> None:
        self._last_arrival_ns: list[int | None] = [None] * classes

    def record_arrival(self, rank: int, now_ns: int) -> None:
        """A request of the class arrives at `now_ns`."""
        self._last_arrival_ns[rank] = now_ns

    def is_active(self, rank: int, now_ns: int) -> bool:
        """Whether a request of the class arrived within the last `ACTIVE_NS`."""
        last_ns = self._last_arrival_ns[rank]
        return last_ns is not None and now_ns - last_ns < ACTIVE_NS
