"""Steps follow one another slower than the cost model says, and waits with them."""

import pytest

from engine.scheduling.pace import MAX_STRETCH, MIN_STRETCH, PACE_STEPS, Pace

STEP_NS = 10_000_000


def run(pace: Pace, steps: int, *, taken_ns: int, gap_ns: int, at_ns: int = 0, more: bool = True) -> int:
    for _ in range(steps):
        at_ns += gap_ns
        pace.observe(STEP_NS, at_ns, at_ns + taken_ns, more=more)
        at_ns += taken_ns
    return at_ns


def test_nothing_is_stretched_before_there_was_a_step() -> None:
    assert Pace().stretch == 1.0


def test_what_comes_between_two_steps_counts_while_there_is_work() -> None:
    pace = Pace()
    run(pace, 3 * PACE_STEPS, taken_ns=STEP_NS, gap_ns=STEP_NS)
    assert pace.stretch == pytest.approx(2.0, rel=0.01)


def test_idle_time_does_not() -> None:
    pace = Pace()
    run(pace, 50, taken_ns=STEP_NS, gap_ns=100 * STEP_NS, more=False)
    assert pace.stretch == 1.0


def test_steps_that_are_always_slow_count() -> None:
    pace = Pace()
    run(pace, 10, taken_ns=3 * STEP_NS, gap_ns=0)
    assert pace.stretch == pytest.approx(3.0)


def test_the_latest_count_most_and_an_accident_is_forgotten() -> None:
    pace = Pace()
    at_ns = run(pace, 200, taken_ns=STEP_NS, gap_ns=0)
    at_ns = run(pace, 1, taken_ns=20 * STEP_NS, gap_ns=0, at_ns=at_ns)
    assert 1.1 < pace.stretch < 1.25
    run(pace, 5 * PACE_STEPS, taken_ns=STEP_NS, gap_ns=0, at_ns=at_ns)
    assert pace.stretch == pytest.approx(1.0, abs=0.01)


def test_it_is_bounded() -> None:
    slow, fast = Pace(), Pace()
    run(slow, 10, taken_ns=10**6 * STEP_NS, gap_ns=0)
    run(fast, 10, taken_ns=1, gap_ns=0)
    assert (slow.stretch, fast.stretch) == (MAX_STRETCH, MIN_STRETCH)
