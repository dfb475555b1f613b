"""Predictions of the wait in a model's queue, at any moment."""

import pytest

from engine.config import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD, Request, SamplingParams, ServiceClass
from engine.runtime.reservation import ExpectedPrompt
from engine.runtime.wait_prediction import FRESH_NS, WaitPredictor
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.scheduling.step_slowdown import StepSlowdown
from engine.simulation import make_request


def make_predictor(max_running: int = 2) -> tuple[Scheduler, WaitPredictor]:
    scheduler = Scheduler(SchedulerConfig(max_running=max_running), KVCacheManager(BlockPool(64)), 512)
    return scheduler, WaitPredictor(scheduler, StepSlowdown())


def new_request(number: int, service_class: ServiceClass = STANDARD, tokens: int = 8) -> Request:
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    return make_request(str(number), [1] * tokens, arrival=number, service_class=service_class, params=params)


def waits_ns(predictor: WaitPredictor) -> list[int]:
    return [predictor.predicted_wait(each.name, 8).first_token_ns for each in (PREMIUM, STANDARD)]


def test_a_request_is_counted_once_wherever_it_is() -> None:
    scheduler, predictor = make_predictor()
    waiting = new_request(0)
    scheduler.add(waiting)
    predictor.refresh(0)
    assert predictor.queue_depth == 1

    with predictor.reserve("standard") as reservation:
        reservation.expect([ExpectedPrompt(8, 1, 16)])
        depth, reserved_ns = predictor.queue_depth, waits_ns(predictor)
        request = new_request(1)
        predictor.on_submit([request], reservation)
        assert (predictor.queue_depth, waits_ns(predictor), predictor.reservations) == (depth, reserved_ns, 0)
        predictor.check()
    assert (predictor.queue_depth, waits_ns(predictor)) == (depth, reserved_ns), "what was submitted is not released"
    scheduler.add(request)
    predictor.refresh(1, [request.id])
    assert (predictor.queue_depth, waits_ns(predictor)) == (depth, reserved_ns) == (2, reserved_ns)
    assert scheduler.schedule() is not None
    predictor.refresh(2)
    assert predictor.queue_depth == 0


def test_what_is_reserved_is_waited_for_and_released() -> None:
    _, predictor = make_predictor()
    alone_ns = waits_ns(predictor)
    with pytest.raises(ZeroDivisionError), predictor.reserve("standard") as reservation:
        reservation.expect([ExpectedPrompt(400, 2, 100), ExpectedPrompt(100, 2, 100)])
        assert waits_ns(predictor)[1] > alone_ns[1]
        assert predictor.predicted_wait("standard", 8).drain_ns > 0
        assert predictor.predicted_wait("premium", 8).drain_ns == 0, "those below are no queue"
        assert predictor.reservations == 1
        predictor.check()
        raise ZeroDivisionError
    assert (predictor.queue_depth, predictor.reservations, waits_ns(predictor)) == (0, 0, alone_ns)
    reservation.release()
    predictor.check()
    assert predictor.queue_depth == 0


def test_prompts_of_one_reservation_are_submitted_one_by_one() -> None:
    _, predictor = make_predictor(max_running=1)
    with predictor.reserve("standard") as reservation:
        reservation.expect([ExpectedPrompt(tokens, 2, 16) for tokens in (8, 20, 8)])
        waits = [waits_ns(predictor)]
        for number, tokens in enumerate((20, 8, 8)):
            choices = [new_request(2 * number + choice, tokens=tokens) for choice in range(2)]
            predictor.on_submit(choices, reservation)
            predictor.check()
            waits.append(waits_ns(predictor))
        assert predictor.reservations == 0
    assert len({tuple(each) for each in waits}) == 1


def test_one_that_is_aborted_in_the_inbox_is_not_waited_for() -> None:
    scheduler, predictor = make_predictor()
    alone_ns = waits_ns(predictor)
    requests = [new_request(number) for number in range(5)]
    for request in requests:
        predictor.on_submit([request])
    assert predictor.queue_depth > 0
    predictor.on_abort([request.id for request in requests])
    assert (predictor.queue_depth, waits_ns(predictor)) == (0, alone_ns)
    scheduler.add(requests[0])
    scheduler.abort(requests[0].id)
    predictor.refresh(0, [request.id for request in requests])
    assert (predictor.queue_depth, waits_ns(predictor)) == (0, alone_ns)
    predictor.check()


def test_nobody_waits_for_an_engine_that_has_ended() -> None:
    scheduler, predictor = make_predictor()
    scheduler.add(new_request(0))
    predictor.refresh(0)
    predictor.on_submit([new_request(1)])
    predictor.on_stop()
    assert predictor.queue_depth == 0
    assert predictor.predicted_wait("standard", 8).drain_ns == 0


def test_a_load_is_fresh_while_as_many_run_and_nobody_waits() -> None:
    scheduler, predictor = make_predictor()
    requests = [new_request(number) for number in range(3)]

    def step(now_ns: int) -> None:
        plan = scheduler.schedule()
        scheduler.commit(plan, StepResult((RowResult(token=5),) * len(plan.rows)))
        predictor.refresh(now_ns, stepped=True)

    assert not predictor.is_fresh(0), "it has not been told of a step"
    scheduler.add(requests[0])
    step(0)
    assert predictor.is_fresh(FRESH_NS - 1)
    assert not predictor.is_fresh(FRESH_NS)

    scheduler.add(requests[1])
    assert not predictor.is_fresh(1), "a request has arrived"
    step(0)
    assert predictor.is_fresh(1)
    scheduler.add(requests[2])
    assert not predictor.is_fresh(1), "a request waits"
    scheduler.abort("2")
    assert predictor.is_fresh(1)
    scheduler.abort("1")
    assert not predictor.is_fresh(1), "fewer run"
