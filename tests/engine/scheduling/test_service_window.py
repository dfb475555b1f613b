"""Jain's index, and the window that it looks at."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.scheduling.fair_queue import FairQueue
from engine.scheduling.service_window import SLOTS, WINDOW_NS, ServiceWindow, jain_index
from engine.scheduling.waiting_ages import WaitingAges
from engine.simulation import make_request
from tests.engine.scheduling.support import make_scheduler

SLOT_NS = WINDOW_NS // SLOTS


@pytest.mark.parametrize(
    ("shares", "index"), [([], 1), ([0, 0], 1), ([7], 1), ([5, 5, 5], 1), ([9, 0, 0], 1 / 3), ([1, 2], 0.9)]
)
def test_the_index(shares: list[int], index: float) -> None:
    assert jain_index(shares) == pytest.approx(index)


@given(st.lists(st.integers(0, 10**9), min_size=1).filter(any), st.integers(1, 1000))
def test_the_index_is_bounded_and_knows_no_unit(shares: list[int], unit: int) -> None:
    index = jain_index(shares)
    assert 1 / len(shares) - 1e-9 <= index <= 1 + 1e-9
    assert jain_index([share * unit for share in shares]) == pytest.approx(index)


def test_service_is_forgotten_when_the_window_has_passed() -> None:
    window = ServiceWindow()
    window.add(0, {"a": 3})
    window.add(SLOT_NS - 1, {"a": 1, "b": 2})
    window.add(SLOT_NS, {"b": 5})
    window.add(WINDOW_NS - 1, {})
    assert window.fairness(WINDOW_NS - 1) == pytest.approx(jain_index([4, 7]))
    window.add(WINDOW_NS, {})
    assert (window.active_tenants(WINDOW_NS), window.fairness(WINDOW_NS)) == (1, 1.0)
    window.add_waiting("c")
    assert window.fairness(WINDOW_NS) == pytest.approx(jain_index([5, 0]))


def test_when_nothing_is_computed_for_a_window_nothing_was_served() -> None:
    """The caller is then not the stepping thread, and no step records the time."""
    window = ServiceWindow()
    window.add(0, {"a": 3, "b": 1})
    window.add_waiting("c")
    assert window.active_tenants(WINDOW_NS - 1) == 3
    assert (window.active_tenants(WINDOW_NS), window.fairness(WINDOW_NS)) == (1, 1.0)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3 * SLOT_NS),
            st.dictionaries(st.sampled_from("abc"), st.integers(0, 100), max_size=3),
            st.sampled_from(["", *"abcd"]),
        ),
        max_size=60,
    )
)
def test_the_window_holds_the_slots_that_touch_it(steps: list[tuple[int, dict[str, int], str]]) -> None:
    window, now_ns, booked = ServiceWindow(), 0, []
    waiting: list[str] = []
    for pause_ns, services, tenant in steps:
        now_ns += pause_ns
        window.add(now_ns, services)
        booked += [(now_ns // SLOT_NS, name, service) for name, service in services.items()]
        if tenant in waiting:
            waiting.remove(tenant)
            window.remove_waiting(tenant)
        elif tenant:
            waiting.append(tenant)
            window.add_waiting(tenant)
        window.check()
    expected: dict[str, int] = dict.fromkeys(waiting, 0)
    for slot, name, service in booked:
        if slot > now_ns // SLOT_NS - SLOTS:
            expected[name] = expected.get(name, 0) + service
    assert window.active_tenants(now_ns) == len(expected)
    assert window.fairness(now_ns) == pytest.approx(jain_index(list(expected.values())))


def test_a_slot_of_many_tenants_is_forgotten_a_part_in_each_step() -> None:
    window = ServiceWindow()
    window.add(0, {f"t{number}": 1 for number in range(1000)})
    left = []
    for _ in range(5):
        window.add(WINDOW_NS, {"a": 1})
        window.check()
        left.append(window.active_tenants(WINDOW_NS))
    assert left == [745, 489, 233, 1, 1]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=100))
def test_the_oldest_of_those_that_wait(events: list[tuple[bool, int]]) -> None:
    ages, waiting = WaitingAges(), []
    for number, (comes, value) in enumerate(events):
        if comes:
            request = make_request(str(number), [1], arrival=number)
            request.waiting_since_ns = value
            ages.add(request)
            waiting.append(request)
        elif waiting:
            ages.remove(waiting.pop(value % len(waiting)))
        ages.check()
        assert ages.oldest_ns == min((each.waiting_since_ns for each in waiting), default=None)


def test_statistics_do_not_go_through_those_that_wait() -> None:
    """They are asked for on the event loop, however many there are."""
    scheduler = make_scheduler()
    for number in range(50):
        scheduler.add(make_request(str(number), [1], arrival=number, tenant=f"t{number}"), now_ns=number)
    for queue in scheduler.waiting_queues:
        queue.__class__ = Untouchable
    stats = scheduler.stats(100).classes[1]
    assert (stats.waiting, stats.queue_age_ns, stats.active_tenants, stats.fairness) == (50, 100, 50, 1.0)


class Untouchable(FairQueue):
    def __iter__(self) -> Iterator[Request]:
        raise AssertionError("it is gone through")
