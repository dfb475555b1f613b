"""The longest wait of a class."""

from heapq import heapify, heappop, heappush

from engine.request import Request

_SPARE_ENTRIES = 16
"""Stale heap entries that are tolerated however few requests wait."""


class WaitingAges:
    """The waiting requests of one class, ordered by when their wait began. A lazy heap: each operation is O(log n),
    amortised. `oldest_ns` may be read by any thread.
    """

    def __init__(self) -> None:
        self._since_ns: dict[Request, int] = {}
        self._heap: list[tuple[int, int, Request]] = []
        self.oldest_ns: int | None = None
        """When the longest wait began; None where no request waits."""

    def add(self, request: Request) -> None:
        self._since_ns[request] = request.waiting_since_ns
        heappush(self._heap, (request.waiting_since_ns, request.arrival, request))
        self._clear_top()

    def remove(self, request: Request) -> None:
        del self._since_ns[request]
        self._clear_top()
        if len(self._heap) > 2 * len(self._since_ns) + _SPARE_ENTRIES:
            self._heap = [entry for entry in self._heap if self._stands(entry)]
            heapify(self._heap)

    def check(self) -> None:
        """Assert that `oldest_ns` is the minimum."""
        assert self.oldest_ns == min(self._since_ns.values(), default=None), "another has waited longer"
        assert len(self._heap) <= 2 * len(self._since_ns) + _SPARE_ENTRIES, "the heap keeps what is stale"

    def _clear_top(self) -> None:
        while self._heap and not self._stands(self._heap[0]):
            heappop(self._heap)
        self.oldest_ns = self._heap[0][0] if self._heap else None

    def _stands(self, entry: tuple[int, int, Request]) -> bool:
        return self._since_ns.get(entry[2]) == entry[0]
