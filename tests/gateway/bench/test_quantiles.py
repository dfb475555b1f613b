import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tools.bench.quantiles import ENOUGH_BEYOND, quantile, quantiles_ms, samples_needed

SHARES = st.floats(0.01, 0.99)


@pytest.mark.parametrize(("share", "needed"), [(0.5, 20), (0.9, 100), (0.95, 200), (0.99, 1000), (0.01, 1000)])
def test_how_many_samples_a_quantile_takes(share: float, needed: int) -> None:
    assert samples_needed(share) == needed
    assert quantile([1.0] * (needed - 1), share) is None
    assert quantile([1.0] * needed, share) == 1.0


@given(st.lists(st.floats(0, 1e6), max_size=400), SHARES)
def test_a_quantile_is_one_of_the_values_and_has_enough_on_either_side(values: list[float], share: float) -> None:
    ordered = sorted(values)
    value = quantile(ordered, share)
    if value is None:
        assert len(values) < samples_needed(share)
        return
    assert sum(each <= value for each in ordered) >= math.floor(share * len(ordered))
    assert sum(each < value for each in ordered) <= math.ceil(share * len(ordered))
    rank = ordered.index(value)
    assert len(ordered) - rank >= ENOUGH_BEYOND
    assert len(ordered) - ordered[::-1].index(value) >= ENOUGH_BEYOND


def test_the_hundred_numbers() -> None:
    stated = quantiles_ms([n / 1000 for n in range(100, 0, -1)])
    assert (stated.n, stated.p50, stated.p90, stated.p99) == (100, 50.0, 90.0, None)
    assert stated.mean == pytest.approx(50.5)
    assert stated.max == pytest.approx(100)


def test_of_nothing_nothing_is_said() -> None:
    stated = quantiles_ms([])
    assert (stated.n, stated.mean, stated.p50, stated.max) == (0, None, None, None)
