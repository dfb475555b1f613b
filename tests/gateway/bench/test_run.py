"""Loads in virtual time, on a server that is none: what is measured, and for how long."""

import asyncio
from collections.abc import Iterator
from itertools import repeat
from random import Random
from typing import cast

import pytest

from gateway.tools.bench.client import Client
from gateway.tools.bench.clock import Clock
from gateway.tools.bench.load import ClosedLoop, Load, OpenLoop
from gateway.tools.bench.outcome import FINISHED, UNFINISHED, Outcome
from gateway.tools.bench.prompts import Prompt
from gateway.tools.bench.recorder import Recorder
from gateway.tools.bench.report import Objective, Report
from gateway.tools.bench.run import Plan, run_plan
from tests.support.virtual_time import in_virtual_time, virtual_clock


class Answering:
    """Each answer takes `seconds`."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds

    async def prepare(self, prompt: Prompt) -> None:
        pass

    async def ask(self, prompt: Prompt, due_s: float, record: Recorder) -> None:
        record.begin()
        sent_s, ending = self._clock.now_s(), UNFINISHED
        try:
            await self._clock.sleep(self._seconds)
            ending = FINISHED
        finally:
            now_s = self._clock.now_s()
            record.end(Outcome(due_s, sent_s, now_s, ending, (now_s,), 1, 1))


def prompts(_: Random) -> Iterator[Prompt]:
    return repeat(Prompt("p", None, 1))


def reports(*loads: Load, answer_s: float, stop_after_s: float | None = None) -> list[Report]:
    async def run() -> list[Report]:
        clock, stop = virtual_clock(), asyncio.Event()
        if stop_after_s is not None:
            asyncio.get_running_loop().call_later(stop_after_s, stop.set)
        plan = Plan(loads, seconds=20.0, warmup_s=10.0, seed=1, objective=Objective())
        client = cast(Client, Answering(clock, answer_s))
        return await run_plan(plan, client, prompts, clock, lambda *_: None, stop)

    return in_virtual_time(run())


def test_loads_have_their_time_however_soon_answers_are_there() -> None:
    fast, faster = reports(OpenLoop(0.3), OpenLoop(4.0), answer_s=0.01)
    assert fast.seconds == faster.seconds == pytest.approx(20)
    assert fast.requests_per_s == fast.requests / 20
    assert (fast.load, faster.load) == ("0.3 requests/s", "4 requests/s")
    assert faster.requests > fast.requests


def test_answers_that_end_later_are_waited_for_and_are_no_throughput() -> None:
    (report,) = reports(OpenLoop(4.0), answer_s=100.0)
    assert report.finished == report.requests > 40
    assert report.requests_per_s == 0
    assert report.total_ms.mean == pytest.approx(100_000)


def test_a_closed_loop_is_measured_after_its_warm_up() -> None:
    (report,) = reports(ClosedLoop(3), answer_s=1.0)
    assert report.requests_per_s == pytest.approx(3, abs=0.2)
    assert (report.seconds, report.late_ms) == (pytest.approx(20), None)


def test_one_that_is_stopped_is_reported_as_far_as_it_came() -> None:
    (report,) = reports(OpenLoop(4.0), OpenLoop(8.0), answer_s=3.0, stop_after_s=15.0)
    assert report.seconds == pytest.approx(5)
    assert report.unfinished > 0
    assert report.finished + report.unfinished == report.requests
    (report,) = reports(OpenLoop(4.0), answer_s=3.0, stop_after_s=5.0)  # in the warm-up
    assert (report.requests, report.finished) == (0, 0)
