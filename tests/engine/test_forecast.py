"""What is known of a model's queue between two of its steps."""

from engine.config import SchedulerConfig
from engine.forecast import Forecast
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD
from engine.scheduling import Scheduler
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
