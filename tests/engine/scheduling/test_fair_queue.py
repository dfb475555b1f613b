"""Order of the tenants of a class."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.scheduling import fair_queue
from engine.scheduling.admission import PreemptionBudget
from engine.scheduling.fair_queue import FairQueue
from engine.simulation import make_request


def request(arrival: int, tenant: str) -> Request:
    return make_request(f"r{arrival}", [1], arrival=arrival, tenant=tenant)


def take(queue: FairQueue) -> Request:
    head = queue.head()
    assert head is not None
    queue.remove(head)
    queue.check()
    return head


def test_an_empty_queue_has_no_head() -> None:
    assert FairQueue().head() is None


def test_first_come_first_served_inside_a_tenant() -> None:
    queue = FairQueue()
    for arrival in (3, 1, 2):
        queue.add(request(arrival, "a"))
    assert [take(queue).arrival for _ in range(3)] == [1, 2, 3]
    assert len(queue) == 0


def test_the_least_served_tenant_comes_first() -> None:
    queue = FairQueue()
    for arrival in range(6):
        queue.add(request(arrival, "ab"[arrival % 2]))
    queue.charge({"a": 100})
    assert [take(queue).tenant for _ in range(4)] == ["b", "b", "b", "a"]


def test_equally_served_tenants_go_by_arrival() -> None:
    queue = FairQueue()
    for arrival, tenant in ((5, "a"), (2, "b"), (3, "c")):
        queue.add(request(arrival, tenant))
    assert [take(queue).tenant for _ in range(3)] == ["b", "c", "a"]


def test_service_is_divided_by_the_weight() -> None:
    queue = FairQueue(weight=4.0)
    queue.add(request(0, "a"))
    queue.charge({"a": 10})
    assert queue.counter("a") == 2.5


def test_nobody_saves_up_turns_while_idle() -> None:
    queue = FairQueue()
    queue.add(request(0, "idle"))
    take(queue)
    for arrival in range(1, 4):
        queue.add(request(arrival, "busy"))
    queue.charge({"busy": 1000})
    queue.add(request(9, "idle"))
    assert queue.counter("idle") == 1000
    assert take(queue).tenant == "busy"


def test_one_who_was_served_more_is_not_lowered() -> None:
    queue = FairQueue()
    for arrival, tenant in enumerate("ab"):
        queue.add(request(arrival, tenant))
    assert take(queue).tenant == "a"
    queue.charge({"a": 500, "b": 100})
    queue.add(request(2, "a"))
    assert queue.counter("a") == 500


def test_a_newcomer_to_an_empty_queue_equals_who_waited_last() -> None:
    queue = FairQueue()
    queue.add(request(0, "a"))
    take(queue)
    queue.charge({"a": 700})  # it still runs
    queue.add(request(1, "b"))
    assert queue.counter("b") == 700


def test_a_victim_comes_back_to_its_place() -> None:
    queue = FairQueue()
    for arrival in range(3):
        queue.add(request(arrival, "a"))
    victim = take(queue)
    queue.add(victim)
    assert take(queue) is victim


def test_only_what_is_there_is_removed() -> None:
    queue = FairQueue()
    queue.add(request(0, "a"))
    with pytest.raises(AssertionError, match="not in its place"):
        queue.remove(request(1, "a"))


def test_any_order_of_events_keeps_the_turns() -> None:
    rng = Random(4)
    queue = FairQueue()
    inside: list[Request] = []
    for arrival in rng.sample(range(2000), 600):
        newcomer = request(arrival, f"t{rng.randrange(7)}")
        queue.add(newcomer)
        inside.append(newcomer)
        if rng.random() < 0.5:
            queue.charge({f"t{rng.randrange(7)}": rng.randrange(50)})
        if rng.random() < 0.4:
            queue.remove(inside.pop(rng.randrange(len(inside))))
        if rng.random() < 0.3:
            inside.remove(take(queue))
        queue.check()
    assert sorted(request.id for request in queue) == sorted(request.id for request in inside)


def test_idle_tenants_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_queue, "IDLE_TENANTS", 10)
    queue = FairQueue()
    for arrival in range(5000):
        queue.add(request(arrival, f"t{arrival}"))
        take(queue)
    assert len(queue._tenants) <= 1024 + 1


def test_the_heap_does_not_grow_behind_a_head_that_cannot_start() -> None:
    queue = FairQueue()
    queue.add(request(0, "a"))
    queue.charge({"b": 100, "c": 100})
    for arrival in range(1, 2001):
        newcomer = request(arrival, "bc"[arrival % 2])
        queue.add(newcomer)
        assert queue.head() is not newcomer
        queue.remove(newcomer)
        assert len(queue._heap) <= 20
    assert take(queue).tenant == "a"


_EVENTS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "remove", "charge", "head"]), st.integers(0, 7), st.integers(0, 30)),
    max_size=200,
)


@given(_EVENTS)
def test_whatever_comes_and_goes_the_heap_is_bounded_and_the_turns_are_kept(events: list[tuple[str, int, int]]) -> None:
    queue = FairQueue()
    inside: list[Request] = []
    for arrival, (event, tenant, number) in enumerate(events):
        if event == "add":
            inside.append(request(arrival, f"t{tenant}"))
            queue.add(inside[-1])
        elif event == "charge":
            queue.charge({f"t{tenant}": number})
        elif event == "remove" and inside:
            queue.remove(inside.pop(number % len(inside)))
        elif event == "head" and inside:
            inside.remove(take(queue))
        queue.check()
        assert len(queue._heap) <= 2 * len({each.tenant for each in inside}) + 16


def test_a_bucket_empties_and_fills() -> None:
    budget = PreemptionBudget(burst=4, window_steps=100)
    budget.spend("a", 0, 3)
    assert [budget.left("a", step) for step in (0, 24, 25, 49, 50, 75, 1000)] == [1, 1, 2, 2, 3, 4, 4]
    assert budget.left("b", 0) == 4
    with pytest.raises(AssertionError, match="too many"):
        budget.spend("a", 0, 2)
