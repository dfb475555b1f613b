import bisect
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.tools.top.sample import Between, Estimate, NotMetrics, Sample, quantile

EDGES = (0.1, 0.5, 1.0, 5.0)


def sample(text: str, at_s: float = 0.0) -> Sample:
    return Sample.parse(text, at_s)


BEFORE = sample('# TYPE a counter\na_total{m="x",c="1"} 5\na_total{m="x",c="2"} 7\na_total{m="y",c="1"} 100\n', 10.0)
AFTER = sample('# TYPE a counter\na_total{m="x",c="1"} 9\na_total{m="x",c="2"} 7\na_total{m="y",c="1"} 40\n', 12.0)


def test_values_are_found_by_some_of_their_labels() -> None:
    assert BEFORE.total("a_total") == 112
    assert BEFORE.total("a_total", m="x") == 12
    assert BEFORE.total("a_total", m="x", c="2") == 7
    assert BEFORE.most("a_total", m="x") == 7
    assert BEFORE.total("a_total", m="z") is None
    assert BEFORE.total("b_total") is None
    assert BEFORE.values_of("m", "a_total", "b_total") == ["x", "y"]
    assert BEFORE.values_of("c", "a_total", m="y") == ["1"]


def test_rates_are_of_the_time_between() -> None:
    assert Between(BEFORE, AFTER).rate("a_total", m="x") == 2.0
    assert Between(BEFORE, AFTER).rate("b_total") is None
    assert Between(BEFORE, BEFORE).rate("a_total") is None


def test_a_counter_that_began_anew_counts_from_nothing() -> None:
    assert Between(BEFORE, AFTER).grown("a_total", m="y") == 40


def test_a_series_that_was_not_there_counts_from_nothing() -> None:
    assert Between(sample(""), AFTER).grown("a_total", m="x", c="1") == 9


@pytest.mark.parametrize("text", ["<html>hello</html>", "a b c", "{"])
def test_what_is_no_metrics(text: str) -> None:
    with pytest.raises(NotMetrics):
        sample(text)


def observed(values: list[float]) -> Sample:
    registry = CollectorRegistry()
    histogram = Histogram("h", "h", ["model"], buckets=EDGES, registry=registry)
    histogram.labels("x")
    for index, value in enumerate(values):
        histogram.labels("xy"[index % 2]).observe(value)
    return sample(generate_latest(registry).decode())


@given(
    st.lists(st.floats(0, 10), max_size=20), st.lists(st.floats(0, 10), min_size=1, max_size=60), st.floats(0.01, 0.99)
)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(old: list[float], new: list[float], share: float) -> None:
    """Of what was observed between the two samples alone, and over all series."""
    buckets = Between(observed(old), observed(old + new)).buckets("h")
    assert buckets[-1] == (math.inf, len(new))
    estimate = quantile(buckets, share)
    assert estimate is not None
    true = sorted(new)[math.ceil(share * len(new)) - 1]
    index = bisect.bisect_left(EDGES, true)
    if index == len(EDGES):
        assert estimate == Estimate(EDGES[-1], beyond=True)
    else:
        assert (0.0, *EDGES)[index] <= estimate.value <= EDGES[index] + 1e-9
        assert not estimate.beyond


def test_without_observations_there_is_none() -> None:
    assert quantile([], 0.5) is None
    assert quantile(Between(observed([1.0]), observed([1.0])).buckets("h"), 0.5) is None
    assert quantile(Between(observed([]), observed([])).buckets("missing"), 0.5) is None
