"""Inputs of the controller's choice: acceptance by position, times by tokens, the cost of drafting."""

import random

import pytest

from engine.scheduling.cost import CostCoefficients, StepCostModel
from engine.speculation.acceptance import Acceptance
from engine.speculation.draft_cost import DraftCost
from engine.speculation.policy import Drafting
from engine.speculation.step_times import UNTRIED, StepTimes, bucket


def test_acceptance_is_learnt_by_position() -> None:
    """The first is always accepted, the second half the time, the third never."""
    acceptance = Acceptance(4)
    for step in range(1000):
        acceptance.observe(3, 1 + step % 2, step)
    gains = acceptance.gains(1000, 4)
    assert gains.mean[:4] == pytest.approx([0.0, 1.0, 1.5, 1.5], abs=0.02)
    assert gains.hopeful == gains.mean, "there is nothing to hope for of what is verified all the time"


def test_a_position_is_counted_only_where_it_was_reached() -> None:
    acceptance = Acceptance(2)
    for step in range(1000):
        acceptance.observe(2, 2 if step % 4 == 0 else 0, step)
    mean = acceptance.gains(1000, 2).mean
    assert mean[1] == pytest.approx(0.25, abs=0.02)
    assert mean[2] - mean[1] == pytest.approx(0.25, abs=0.02), "whenever the first is accepted, so is the second"


def test_what_was_never_tried_is_hopeful_and_depths_never_bring_less() -> None:
    acceptance = Acceptance(8)
    for step in range(50):
        acceptance.observe(1, step % 2, step)
    gains = acceptance.gains(50, 1)
    assert all(hopeful > mean for hopeful, mean in zip(gains.hopeful[2:], gains.mean[2:], strict=True))
    assert list(gains.mean) == sorted(gains.mean)


def test_acceptance_of_long_ago_counts_little() -> None:
    acceptance = Acceptance(1)
    for step in range(500):
        acceptance.observe(1, 0, step)
    for step in range(10_000, 10_020):
        acceptance.observe(1, 1, step)
    assert acceptance.gains(10_020, 1).mean[1] > 0.85


def test_times_are_those_that_were_measured_however_uneven() -> None:
    rng = random.Random(0)
    times = StepTimes(StepCostModel())
    true_ms = {1: 10.0, 2: 14.0, 3: 14.0, 4: 14.0, 5: 30.0}
    for step in range(400):
        tokens = rng.choice(list(true_ms))
        times.observe(tokens, 100, round(1e6 * true_ms[tokens] * rng.gauss(1.0, 0.05)), step)
    for tokens, ms in true_ms.items():
        estimate = times.predict(tokens, 100, 400)
        assert estimate.ns == pytest.approx(1e6 * ms, rel=0.03)
        assert estimate.error < 0.02


def test_between_what_was_measured_and_beyond_it_times_are_estimated_and_uncertain() -> None:
    times = StepTimes(StepCostModel.from_coefficients(CostCoefficients(8e6, 1e6, 0.0, 0.0)))
    for step in range(50):
        times.observe(2, 0, 10_000_000, step)
        times.observe(6, 0, 20_000_000, step)
    assert times.predict(4, 0, 50).ns == pytest.approx(15e6, rel=0.01)
    assert times.predict(9, 0, 50).ns == pytest.approx(23e6, rel=0.01)
    assert times.predict(9, 0, 50).error > 5 * times.predict(6, 0, 50).error


def test_a_time_is_less_certain_the_further_it_is_from_what_was_measured() -> None:
    times = StepTimes(StepCostModel.from_coefficients(CostCoefficients(8e6, 1e6, 0.0, 0.0)))
    for step in range(50):
        times.observe(8, 0, 16_000_000, step)
    errors = [times.predict(tokens, 0, 50).error for tokens in (8, 10, 14, 32)]
    assert errors == sorted(errors)
    assert errors[1] < 0.5 * errors[3]


def test_between_two_times_that_differ_much_it_may_be_the_lower_one() -> None:
    times = StepTimes(StepCostModel())
    for step in range(50):
        times.observe(26, 0, 12_000_000, step)
        times.observe(30, 0, 30_000_000, step)
    between = times.predict(28, 0, 50)
    assert between.ns == pytest.approx(21e6, rel=0.02)
    assert between.error == UNTRIED


def test_an_accident_at_first_sight_is_not_believed() -> None:
    times = StepTimes(StepCostModel.from_coefficients(CostCoefficients(8e6, 1e6, 0.0, 0.0)))
    for step in range(50):
        times.observe(2, 0, 10_000_000, step)
    times.observe(3, 0, 90_000_000, 50)
    assert times.predict(3, 0, 51).ns == pytest.approx(11e6, rel=0.02)
    times.observe(3, 0, 12_000_000, 51)
    assert times.predict(3, 0, 52).ns == pytest.approx(12e6, rel=0.02)


def test_a_slower_device_makes_all_times_longer_and_those_not_seen_since_uncertain() -> None:
    times = StepTimes(StepCostModel())
    for step in range(300):
        times.observe(1, 0, 10_000_000, step)
        times.observe(5, 0, 15_000_000, step)
    sure = times.predict(5, 0, 300).error
    for step in range(300, 500):
        times.observe(1, 0, 20_000_000, step)
    assert times.predict(1, 0, 500).ns == pytest.approx(20e6, rel=0.02)
    assert times.predict(5, 0, 500).ns > 17e6
    assert times.predict(5, 0, 500).error > 10 * sure


def test_reading_more_context_takes_longer() -> None:
    times = StepTimes(StepCostModel.from_coefficients(CostCoefficients(8e6, 1e6, 1000.0, 0.0)))
    for step in range(50):
        times.observe(1, 1000, 10_000_000, step)
    assert times.predict(1, 3000, 50).ns == pytest.approx(12e6, rel=0.01)


def test_buckets_are_fine_where_few_tokens_are() -> None:
    assert [bucket(tokens) for tokens in range(1, 16)] == list(range(1, 16))
    assert [bucket(tokens) for tokens in (16, 17, 31, 32, 35, 36)] == [16, 16, 30, 32, 32, 36]
    assert all(bucket(tokens) <= tokens < 1.15 * bucket(tokens) for tokens in range(1, 1000))


def test_drafting_costs_nothing_until_it_was_tried_and_then_what_its_passes_take() -> None:
    cost = DraftCost()
    assert cost.predict(4, 8, 0).ns == 0.0
    for step in range(100):
        cost.observe(Drafting("small", 4, 5, 4, 20, 10_000_000), step)
        cost.observe(Drafting("small", 1, 2, 1, 2, 2_000_000), step)
    assert cost.predict(4, 8, 100).ns == pytest.approx(16e6, rel=0.02)
    assert cost.predict(1, 8, 100).ns == pytest.approx(8e6, rel=0.02)


def test_the_price_of_catching_up_is_learnt_with_drafts_and_without() -> None:
    """A pass takes a millisecond, and 50 us for each token."""
    rng = random.Random(0)
    cost = DraftCost()
    for step in range(300):
        requests, lag = rng.choice([(2, 0), (2, 2), (2, 130), (0, 64), (0, 200)])
        depth = 4 if requests else 0
        elapsed_ns = 1_000_000 * max(depth, 1) + 50_000 * (requests * max(depth - 1, 0) + max(lag, requests))
        cost.observe(Drafting("small", requests, depth, lag, 4 * requests, elapsed_ns), step)
    assert cost.catch_up_ns(1000) == pytest.approx(50e6, rel=0.15)
