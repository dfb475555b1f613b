"""The loops, in virtual time: what is stated here does not hang on how fast this machine is."""

import asyncio
import math
import random
from itertools import pairwise

import pytest

from gateway.tools.bench.load import ClosedLoop, OpenLoop, poisson_arrivals
from tests.support.virtual_time import in_virtual_time, virtual_clock


def due_times(
    answer_s: float, *, seed: int = 3, rate_per_s: float = 5, seconds: float = 60
) -> list[tuple[float, float]]:
    """(due, sent) of each request of an open loop, each of whose answers takes so long."""

    async def run() -> list[tuple[float, float]]:
        clock = virtual_clock()
        times = []

        async def ask(due_s: float) -> None:
            times.append((due_s, clock.now_s()))
            await clock.sleep(answer_s)

        await OpenLoop(rate_per_s).run(ask, clock, seconds, random.Random(seed))
        return times

    return in_virtual_time(run())


def test_when_requests_leave_does_not_hang_on_answers() -> None:
    at_once, slow, never = (due_times(answer_s) for answer_s in (0.0, 7.0, 10_000.0))
    assert at_once == slow == never
    assert all(sent_s == pytest.approx(due_s, abs=1e-6) for due_s, sent_s in never)
    assert len(never) == len(list(poisson_arrivals(5, 60, random.Random(3))))


def test_the_seed_says_when() -> None:
    assert due_times(0.0, seed=1) == due_times(0.0, seed=1) != due_times(0.0, seed=2)


def test_arrivals_are_a_poisson_process() -> None:
    """The gaps are exponential by Kolmogorov and Smirnov's test; the seed is fixed, so it says the same each time."""
    rate_per_s, seconds = 40.0, 500.0
    arrivals = list(poisson_arrivals(rate_per_s, seconds, random.Random(5)))
    assert all(0 <= at_s < seconds for at_s in arrivals)
    gaps = sorted(after - before for before, after in pairwise([0.0, *arrivals]))
    n = len(gaps)
    assert n == pytest.approx(rate_per_s * seconds, abs=4 * math.sqrt(rate_per_s * seconds))
    exact = [1 - math.exp(-rate_per_s * gap_s) for gap_s in gaps]
    distance = max(max(each - i / n, (i + 1) / n - each) for i, each in enumerate(exact))
    assert distance < 1.36 / math.sqrt(n)


def test_a_generator_that_is_held_up_keeps_the_times_at_which_requests_were_due() -> None:
    async def run() -> list[tuple[float, float]]:
        clock = virtual_clock()
        times = []

        async def ask(due_s: float) -> None:
            times.append((due_s, clock.now_s()))
            if len(times) == 10:
                asyncio.get_running_loop()._virtual.now_s += 5.0  # type: ignore[attr-defined]

        await OpenLoop(5).run(ask, clock, 60, random.Random(3))
        return times

    times = in_virtual_time(run())
    assert [due_s for due_s, _ in times] == pytest.approx([due_s for due_s, _ in due_times(0.0)])
    late = [sent_s - due_s for due_s, sent_s in times]
    assert max(late) > 3
    assert late[9] == pytest.approx(0, abs=1e-6)
    assert late[-1] == pytest.approx(0, abs=1e-6)  # it has caught up, and dropped nothing


def test_a_closed_loop_keeps_its_number_under_way() -> None:
    async def run() -> tuple[int, list[int]]:
        clock = virtual_clock()
        under_way, seen = 0, []

        async def ask(due_s: float) -> None:
            nonlocal under_way
            assert due_s == clock.now_s()
            under_way += 1
            seen.append(under_way)
            await clock.sleep(1.0)
            under_way -= 1

        await ClosedLoop(4).run(ask, clock, 10, random.Random(0))
        return under_way, seen

    under_way, seen = in_virtual_time(run())
    assert under_way == 0
    assert max(seen) == 4
    assert len(seen) == 40
