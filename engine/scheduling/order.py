"""The order of requests."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from engine.request import Request

OrderKey = tuple[int, int]
TurnKey = tuple[float, int]


def order_key(request: Request) -> OrderKey:
    """The smallest key is first. Unique, and constant from a request's arrival to its end, preemptions included.

    It is the complete order of running requests. For waiting requests it orders the classes, and the requests of a
    tenant (first come, first served); `turn_key` orders the tenants of a class.
    """
    return request.service_class.priority, request.arrival


def turn_key(counter: float, first: Request) -> TurnKey:
    """The smallest key is first among the tenants of a class: the least served, then the one with the oldest request.

    `counter`: the service that the tenant has received. `first`: the tenant's first request.
    """
    return counter, first.arrival


class OrderedQueue:
    """Requests in the order of `order_key`. Appending (the common case) and finding a request are O(log n)."""

    def __init__(self) -> None:
        self._keys: list[OrderKey] = []
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def add(self, request: Request) -> None:
        key = order_key(request)
        index = bisect_left(self._keys, key)
        assert index == len(self._keys) or self._keys[index] != key, f"two requests have the place {key}"
        self._keys.insert(index, key)
        self._requests.insert(index, request)

    def remove(self, request: Request) -> None:
        index = bisect_left(self._keys, order_key(request))
        found = self._requests[index] if index < len(self._requests) else None
        assert found is request, f"{request.id} is not in its place"
        del self._keys[index], self._requests[index]

    def check(self) -> None:
        """Assert that the queue is in order, without duplicates."""
        assert self._keys == [order_key(request) for request in self._requests], "a request's place has changed"
        assert all(a < b for a, b in zip(self._keys, self._keys[1:], strict=False)), "the queue is out of order"


class RankedQueue:
    """The running requests, in one queue per rank. Iterates from the highest rank on, in the order of `order_key`."""

    def __init__(self, ranks: int) -> None:
        self.ranks = [OrderedQueue() for _ in range(ranks)]

    def __len__(self) -> int:
        return sum(map(len, self.ranks))

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self.ranks)

    def add(self, request: Request) -> None:
        self.ranks[request.rank].add(request)

    def remove(self, request: Request) -> None:
        self.ranks[request.rank].remove(request)

    def check(self) -> None:
        """Assert that each queue is in order and each request in the queue of its rank."""
        for rank, queue in enumerate(self.ranks):
            queue.check()
            assert all(request.rank == rank for request in queue), "a request is in another rank's queue"
