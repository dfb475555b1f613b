"""Steps follow one another slower than the cost model says, and waits with them."""

import pytest

from engine.scheduling.step_slowdown import MAX_SLOWDOWN, MEAN_STEPS, MIN_SLOWDOWN, StepSlowdown

STEP_NS = 10_000_000


def run(slowdown: StepSlowdown, steps: int, *, taken_ns: int, gap_ns: int, at_ns: int = 0, more: bool = True) -> int:
    for _ in range(steps):
        at_ns += gap_ns
        slowdown.observe(STEP_NS, at_ns, at_ns + taken_ns, more=more)
        at_ns += taken_ns
    return at_ns


def test_nothing_is_stretched_before_there_was_a_step() -> None:
    assert StepSlowdown().factor == 1.0


def test_what_comes_between_two_steps_counts_while_there_is_work() -> None:
    slowdown = StepSlowdown()
    run(slowdown, 3 * MEAN_STEPS, taken_ns=STEP_NS, gap_ns=STEP_NS)
    assert slowdown.factor == pytest.approx(2.0, rel=0.01)


def test_idle_time_does_not() -> None:
    slowdown = StepSlowdown()
    run(slowdown, 50, taken_ns=STEP_NS, gap_ns=100 * STEP_NS, more=False)
    assert slowdown.factor == 1.0


def test_steps_that_are_always_slow_count() -> None:
    slowdown = StepSlowdown()
    run(slowdown, 10, taken_ns=3 * STEP_NS, gap_ns=0)
    assert slowdown.factor == pytest.approx(3.0)


def test_the_latest_count_most_and_an_accident_is_forgotten() -> None:
    slowdown = StepSlowdown()
    at_ns = run(slowdown, 200, taken_ns=STEP_NS, gap_ns=0)
    at_ns = run(slowdown, 1, taken_ns=20 * STEP_NS, gap_ns=0, at_ns=at_ns)
    assert 1.1 < slowdown.factor < 1.25
    run(slowdown, 5 * MEAN_STEPS, taken_ns=STEP_NS, gap_ns=0, at_ns=at_ns)
    assert slowdown.factor == pytest.approx(1.0, abs=0.01)


def test_a_program_that_was_suspended_during_a_step_is_no_slower_for_it() -> None:
    slowdown = StepSlowdown()
    at_ns = run(slowdown, 200, taken_ns=STEP_NS, gap_ns=0)
    run(slowdown, 1, taken_ns=10**5 * STEP_NS, gap_ns=0, at_ns=at_ns)
    assert slowdown.factor < 1.25


def test_the_time_in_which_nothing_was_left_to_do_does_not_count() -> None:
    """The last request left between two steps."""
    slowdown = StepSlowdown()
    at_ns = run(slowdown, 50, taken_ns=STEP_NS, gap_ns=0)
    slowdown.rest()
    run(slowdown, 1, taken_ns=STEP_NS, gap_ns=10 * STEP_NS, at_ns=at_ns)
    assert slowdown.factor == 1.0


def test_it_is_bounded() -> None:
    slow, fast = StepSlowdown(), StepSlowdown()
    run(slow, 10, taken_ns=10**6 * STEP_NS, gap_ns=0)
    run(fast, 10, taken_ns=1, gap_ns=0)
    assert slow.factor == pytest.approx(MAX_SLOWDOWN)
    assert fast.factor == MIN_SLOWDOWN
