"""Who goes first."""

from random import Random

import pytest

from engine.request import Request, ServiceClass
from engine.scheduling.order import OrderedQueue, order_key
from engine.simulation import make_request

PREMIUM, STANDARD = ServiceClass("premium", 0), ServiceClass("standard", 10)


def request(arrival: int, service_class: ServiceClass = STANDARD) -> Request:
    return make_request(f"r{arrival}", [1], arrival=arrival, service_class=service_class)


def test_class_comes_before_arrival() -> None:
    late_premium, early_standard, late_standard = request(9, PREMIUM), request(1), request(2)
    assert sorted([late_standard, late_premium, early_standard], key=order_key) == [
        late_premium,
        early_standard,
        late_standard,
    ]


def test_a_queue_is_in_order_however_it_is_filled_and_emptied() -> None:
    rng = Random(1)
    queue = OrderedQueue()
    inside: list[Request] = []
    for arrival in rng.sample(range(1000), 200):
        newcomer = request(arrival, rng.choice([PREMIUM, STANDARD]))
        queue.add(newcomer)
        inside.append(newcomer)
        if rng.random() < 0.5:
            queue.remove(inside.pop(rng.randrange(len(inside))))
        queue.check()
        assert list(queue) == sorted(inside, key=order_key)
    assert len(queue) == len(inside)
    assert queue[0] is min(inside, key=order_key)


def test_two_requests_do_not_share_a_place() -> None:
    queue = OrderedQueue()
    queue.add(request(1))
    with pytest.raises(AssertionError, match="have the place"):
        queue.add(request(1))


def test_only_what_is_there_is_removed() -> None:
    queue = OrderedQueue()
    queue.add(request(1))
    with pytest.raises(AssertionError, match="not in its place"):
        queue.remove(request(1))


def test_check_finds_a_place_that_changed() -> None:
    queue = OrderedQueue()
    moved = request(1)
    queue.add(moved)
    queue.add(request(2))
    moved.arrival = 3
    with pytest.raises(AssertionError, match="place has changed"):
        queue.check()
