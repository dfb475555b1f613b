"""Which classes are about: what is held ready for a class costs those below, who should not pay for one that is not."""

PRESENCE_NS = 60 * 1_000_000_000
"""How long after its last request a class is about."""


class Presence:
    """Remembers when each class, by rank, last had a request come."""

    def __init__(self, classes: int) -> None:
        self._last_arrival_ns: list[int | None] = [None] * classes

    def note_arrival(self, rank: int, now_ns: int) -> None:
        self._last_arrival_ns[rank] = now_ns

    def is_about(self, rank: int, now_ns: int) -> bool:
        last_ns = self._last_arrival_ns[rank]
        return last_ns is not None and now_ns - last_ns < PRESENCE_NS
