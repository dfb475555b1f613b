"""What is known of a model's queue at any moment."""

import pytest

from engine.config import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD, Request, SamplingParams, ServiceClass
from engine.runtime.forecast import FRESH_NS, Forecast
from engine.runtime.reservation import ExpectedPrompt
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.scheduling.pace import Pace
from engine.simulation import make_request


def make_forecast(max_running: int = 2) -> tuple[Scheduler, Forecast]:
    scheduler = Scheduler(SchedulerConfig(max_running=max_running), KVCacheManager(BlockPool(64)), 512)
    return scheduler, Forecast(scheduler, Pace())


def new_request(number: int, service_class: ServiceClass = STANDARD, tokens: int = 8) -> Request:
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    return make_request(str(number), [1] * tokens, arrival=number, service_class=service_class, params=params)


def waits_ns(forecast: Forecast) -> list[int]:
    return [forecast.predicted_wait(each.name, 8).first_token_ns for each in (PREMIUM, STANDARD)]


def test_a_request_is_counted_once_wherever_it_is() -> None:
    scheduler, forecast = make_forecast()
    waiting = new_request(0)
    scheduler.add(waiting)
    forecast.refresh(0)
    assert forecast.queue_depth == 1

    with forecast.reserve("standard") as reservation:
        reservation.expect([ExpectedPrompt(8, 1, 16)])
        depth, reserved_ns = forecast.queue_depth, waits_ns(forecast)
        request = new_request(1)
        forecast.submitted([request], reservation)
        assert (forecast.queue_depth, waits_ns(forecast), forecast.reservations) == (depth, reserved_ns, 0)
        forecast.check()
    assert (forecast.queue_depth, waits_ns(forecast)) == (depth, reserved_ns), "what was submitted is not released"
    scheduler.add(request)
    forecast.refresh(1, [request.id])
    assert (forecast.queue_depth, waits_ns(forecast)) == (depth, reserved_ns) == (2, reserved_ns)
    assert scheduler.schedule() is not None
    forecast.refresh(2)
    assert forecast.queue_depth == 0


def test_what_is_reserved_is_waited_for_and_released() -> None:
    _, forecast = make_forecast()
    alone_ns = waits_ns(forecast)
    with pytest.raises(ZeroDivisionError), forecast.reserve("standard") as reservation:
        reservation.expect([ExpectedPrompt(400, 2, 100), ExpectedPrompt(100, 2, 100)])
        assert waits_ns(forecast)[1] > alone_ns[1]
        assert forecast.predicted_wait("standard", 8).drain_ns > 0
        assert forecast.predicted_wait("premium", 8).drain_ns == 0, "those below are no queue"
        assert forecast.reservations == 1
        forecast.check()
        raise ZeroDivisionError
    assert (forecast.queue_depth, forecast.reservations, waits_ns(forecast)) == (0, 0, alone_ns)
    reservation.release()
    forecast.check()
    assert forecast.queue_depth == 0


def test_prompts_of_one_reservation_are_submitted_one_by_one() -> None:
    _, forecast = make_forecast(max_running=1)
    with forecast.reserve("standard") as reservation:
        reservation.expect([ExpectedPrompt(tokens, 2, 16) for tokens in (8, 20, 8)])
        waits = [waits_ns(forecast)]
        for number, tokens in enumerate((20, 8, 8)):
            choices = [new_request(2 * number + choice, tokens=tokens) for choice in range(2)]
            forecast.submitted(choices, reservation)
            forecast.check()
            waits.append(waits_ns(forecast))
        assert forecast.reservations == 0
    assert len({tuple(each) for each in waits}) == 1


def test_one_that_is_aborted_in_the_inbox_is_not_waited_for() -> None:
    scheduler, forecast = make_forecast()
    alone_ns = waits_ns(forecast)
    requests = [new_request(number) for number in range(5)]
    for request in requests:
        forecast.submitted([request])
    assert forecast.queue_depth > 0
    forecast.withdrawn([request.id for request in requests])
    assert (forecast.queue_depth, waits_ns(forecast)) == (0, alone_ns)
    scheduler.add(requests[0])
    scheduler.abort(requests[0].id)
    forecast.refresh(0, [request.id for request in requests])
    assert (forecast.queue_depth, waits_ns(forecast)) == (0, alone_ns)
    forecast.check()


def test_nobody_waits_for_an_engine_that_has_ended() -> None:
    scheduler, forecast = make_forecast()
    scheduler.add(new_request(0))
    forecast.refresh(0)
    forecast.submitted([new_request(1)])
    forecast.ended()
    assert forecast.queue_depth == 0
    assert forecast.predicted_wait("standard", 8).drain_ns == 0


def test_a_load_is_fresh_while_as_many_run_and_nobody_waits() -> None:
    scheduler, forecast = make_forecast()
    requests = [new_request(number) for number in range(3)]

    def step(now_ns: int) -> None:
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.commit(plan, StepResult((RowResult(token=5),) * len(plan.rows)))
        forecast.refresh(now_ns, stepped=True)

    assert not forecast.is_fresh(0), "it has not been told of a step"
    scheduler.add(requests[0])
    step(0)
    assert forecast.is_fresh(FRESH_NS - 1)
    assert not forecast.is_fresh(FRESH_NS)

    scheduler.add(requests[1])
    assert not forecast.is_fresh(1), "somebody has come"
    step(0)
    assert forecast.is_fresh(1)
    scheduler.add(requests[2])
    assert not forecast.is_fresh(1), "somebody waits"
    scheduler.abort("2")
    assert forecast.is_fresh(1)
    scheduler.abort("1")
    assert not forecast.is_fresh(1), "fewer run"
