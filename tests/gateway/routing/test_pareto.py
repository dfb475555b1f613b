"""Curves of quality against the large model's share, on cases worked out by hand."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.fitting.pareto import Graded, at_threshold, curve, oracle

WON, LOST, BOTH, NEITHER = (
    Graded(small, large, 1.0) for small, large in ((False, True), (True, False), (True, True), (False, False))
)

pairs = st.lists(
    st.tuples(st.floats(0, 1), st.builds(Graded, st.booleans(), st.booleans(), st.integers(1, 100).map(float))),
    min_size=1,
    max_size=30,
)


def apart(given: Sequence[tuple[float, Graded]]) -> tuple[list[float], list[Graded]]:
    return [score for score, _ in given], [graded for _, graded in given]


def test_an_order_that_is_right_recovers_all_at_the_share_that_wins() -> None:
    found = curve([0.9, 0.8, 0.2, 0.1], [WON, WON, BOTH, NEITHER])
    assert found.shares == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert found.right == (0.25, 0.5, 0.75, 0.75, 0.75)
    assert found.apgr == pytest.approx(0.75)
    assert found.shares_below_random == ()


def test_an_order_upside_down_is_below_random() -> None:
    found = curve([0.1, 0.2, 0.8, 0.9], [WON, WON, BOTH, NEITHER])
    assert found.apgr == pytest.approx(0.25)
    assert len(found.shares_below_random) == 99


def test_what_costs_more_takes_more_of_the_share() -> None:
    found = curve([0.9, 0.1], [Graded(False, True, 30.0), Graded(False, True, 10.0)])
    assert found.shares == (0.0, 0.75, 1.0)


def test_a_score_that_says_nothing_is_random() -> None:
    found = curve([0.5] * 4, [WON, LOST, WON, BOTH])
    assert found.apgr == pytest.approx(0.5)
    assert found.right_at(0.3) == pytest.approx(found.random_at(0.3))


@given(pairs)
def test_every_curve_goes_from_the_small_model_to_the_large_one(given: list[tuple[float, Graded]]) -> None:
    scores, graded = apart(given)
    found = curve(scores, graded)
    assert (found.shares[0], found.shares[-1]) == (0.0, 1.0)
    assert list(found.shares) == sorted(found.shares)
    assert found.small == pytest.approx(sum(each.small for each in graded) / len(graded))
    assert found.large == pytest.approx(sum(each.large for each in graded) / len(graded))


@given(pairs)
def test_nobody_does_better_than_the_oracle(given: list[tuple[float, Graded]]) -> None:
    scores, graded = apart(given)
    best, found = oracle(graded), curve(scores, graded)
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        assert best.right_at(share) >= found.right_at(share) - 1e-9


@given(pairs)
def test_a_threshold_between_all_and_nothing(given: list[tuple[float, Graded]]) -> None:
    scores, graded = apart(given)
    found = curve(scores, graded)
    assert at_threshold(0.0, scores, graded) == pytest.approx((1.0, found.large))
    assert at_threshold(1.1, scores, graded) == pytest.approx((0.0, found.small))
