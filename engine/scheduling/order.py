"""Who goes first."""

from bisect import bisect_left
from collections.abc import Iterator

from engine.request import Request

OrderKey = tuple[int, int]


def order_key(request: Request) -> OrderKey:
    """The smallest key goes first, waiting or running. Unique, and fixed while a request is in a queue."""
    return request.service_class.priority, request.arrival


class OrderedQueue:
    """Requests in the order of `order_key`. Appending, the common case, and finding one are O(log n)."""

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
        assert self._requests[index] is request, f"{request.id} is not in its place"
        del self._keys[index], self._requests[index]

    def check(self) -> None:
        """The queue is in order, each request once."""
        assert self._keys == [order_key(request) for request in self._requests], "a request's place has changed"
        assert all(a < b for a, b in zip(self._keys, self._keys[1:], strict=False)), "the queue is out of order"
