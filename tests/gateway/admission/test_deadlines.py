"""How long an answer may take, and which time counts."""

import asyncio

import pytest

from engine.runtime.responsive_wait import TICK_S, wait_responsively
from gateway.admission.deadlines import CEILING_S, FLOOR_S, AnswerDeadline
from tests.support.virtual_time import in_virtual_time, virtual_loop


def test_a_deadline_follows_the_latency_as_rfc_6298_says() -> None:
    deadline = AnswerDeadline()
    deadline.on_answer(0.04)
    assert deadline.seconds == pytest.approx(0.04 + 4 * 0.02)
    deadline.on_answer(0.06)
    rttvar_s = 3 / 4 * 0.02 + 1 / 4 * 0.02
    assert deadline.seconds == pytest.approx(7 / 8 * 0.04 + 1 / 8 * 0.06 + 4 * rttvar_s)


def test_a_deadline_stays_between_its_floor_and_its_ceiling() -> None:
    deadline = AnswerDeadline()
    assert deadline.seconds == CEILING_S, "nothing is known yet"
    for _ in range(50):
        deadline.on_answer(0.0003)
    assert deadline.seconds == pytest.approx(FLOOR_S + 0.0003)
    deadline.on_timeout()
    assert deadline.seconds == pytest.approx(2 * (FLOOR_S + 0.0003))
    for _ in range(5):
        deadline.on_timeout()
    assert deadline.seconds == CEILING_S
    deadline.on_answer(0.0003)
    assert deadline.seconds == pytest.approx(FLOOR_S + 0.0003), "the next measurement ends the backing off"
    for _ in range(50):
        deadline.on_answer(30.0)
    assert deadline.seconds == CEILING_S


def test_time_in_which_the_process_stood_still_does_not_count() -> None:
    async def run() -> tuple[float, float]:
        loop = virtual_loop()
        answer: asyncio.Future[None] = loop.create_future()
        loop.call_later(TICK_S / 2, loop.stall, 10.0)
        started = loop.time()
        counted_s = await wait_responsively(answer, 5 * TICK_S)
        assert not answer.done()
        return counted_s, loop.time() - started

    counted_s, passed_s = in_virtual_time(run())
    assert counted_s == pytest.approx(5 * TICK_S)
    assert passed_s == pytest.approx(10 + 4.5 * TICK_S, abs=TICK_S)


def test_an_answer_ends_the_waiting() -> None:
    async def run() -> float:
        loop = virtual_loop()
        answer: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.012, answer.set_result, None)
        return await wait_responsively(answer, 1.0)

    assert in_virtual_time(run()) == pytest.approx(0.012)
