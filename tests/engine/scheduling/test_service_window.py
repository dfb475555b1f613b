"""Jain's index, and the window that it looks at."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.scheduling.service_window import SLOTS, WINDOW_NS, ServiceWindow, jain_index

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
    assert window.by_tenant(WINDOW_NS - 1) == {"a": 4, "b": 7}
    assert window.by_tenant(WINDOW_NS) == {"b": 5}
    assert window.by_tenant(WINDOW_NS + SLOT_NS) == {}


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3 * SLOT_NS), st.dictionaries(st.sampled_from("abc"), st.integers(0, 100), max_size=3)
        ),
        max_size=60,
    )
)
def test_the_window_holds_the_slots_that_touch_it(steps: list[tuple[int, dict[str, int]]]) -> None:
    window, now_ns, booked = ServiceWindow(), 0, []
    for pause_ns, services in steps:
        now_ns += pause_ns
        window.add(now_ns, services)
        booked += [(now_ns // SLOT_NS, tenant, service) for tenant, service in services.items()]
    expected: dict[str, int] = {}
    for slot, tenant, service in booked:
        if slot > now_ns // SLOT_NS - SLOTS:
            expected[tenant] = expected.get(tenant, 0) + service
    assert window.by_tenant(now_ns) == expected
