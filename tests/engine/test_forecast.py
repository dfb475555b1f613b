"""What is known of a model's queue between two of its steps."""

from engine.config import SchedulerConfig
from engine.forecast import FRESH_NS, Forecast
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.scheduling.pace import Pace
from engine.simulation import make_request


def test_the_queue_is_all_that_waits_and_what_came_since_the_last_step() -> None:
    scheduler = Scheduler(SchedulerConfig(max_running=2), KVCacheManager(BlockPool(64)), 512)
    forecast = Forecast(scheduler, Pace())
    assert forecast.queue_depth == 0
    first, second, third = [
        make_request(str(number), [1] * 8, arrival=number, service_class=service_class)
        for number, service_class in enumerate((STANDARD, STANDARD, PREMIUM))
    ]
    for request in (first, second, third):
        forecast.submitted(request, 0)
    assert forecast.queue_depth == 3

    scheduler.add(first)
    forecast.stepped(scheduler.snapshot(), [second, third], 0)
    assert forecast.queue_depth == 3
    assert scheduler.schedule() is not None
    forecast.stepped(scheduler.snapshot(), [], 0)
    assert forecast.queue_depth == 0, "it runs, and the others have left"


def test_a_load_is_fresh_while_as_many_run_and_nobody_waits() -> None:
    scheduler = Scheduler(SchedulerConfig(max_running=2), KVCacheManager(BlockPool(64)), 512)
    forecast = Forecast(scheduler, Pace())
    requests = [make_request(str(number), [1] * 8, arrival=number) for number in range(3)]

    def step(now_ns: int) -> None:
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.commit(plan, StepResult((RowResult(token=5),) * len(plan.rows)))
        forecast.stepped(scheduler.snapshot(), [], now_ns)

    assert not forecast.is_fresh(0), "it has not been told of a step"
    forecast.submitted(requests[0], 0)
    scheduler.add(requests[0])
    step(0)
    assert forecast.is_fresh(FRESH_NS - 1)
    assert not forecast.is_fresh(FRESH_NS)

    forecast.submitted(requests[1], 0)
    assert not forecast.is_fresh(1), "somebody has come"
    scheduler.add(requests[1])
    assert not forecast.is_fresh(1)
    step(0)
    assert forecast.is_fresh(1)
    scheduler.add(requests[2])
    assert not forecast.is_fresh(1), "somebody waits"
    scheduler.abort("2")
    assert forecast.is_fresh(1)
    scheduler.abort("1")
    assert not forecast.is_fresh(1), "fewer run"
