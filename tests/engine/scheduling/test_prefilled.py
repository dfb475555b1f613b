"""How much of its prompt the engine computed for a request, however that ends."""

import pytest

from engine.request import SamplingParams
from engine.scheduling import Scheduler, StepPlan
from tests.engine.scheduling.support import make_scheduler, outcome, prompts

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True)


def launched(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    assert plan is not None
    return plan


def test_none_while_a_request_waits() -> None:
    scheduler = make_scheduler(max_running=1)
    first, second = prompts(2, 40, PARAMS)
    scheduler.add(first)
    scheduler.add(second)
    launched(scheduler)
    scheduler.abort(second.id)
    assert (first.usage.prefilled_tokens, second.usage.prefilled_tokens) == (40, 0)


@pytest.mark.parametrize("end", ["abort", "pause", "preempt", "fail"])
@pytest.mark.parametrize(("steps", "tokens"), [(0, 64), (1, 128), (2, 150)])
def test_what_was_computed_or_in_flight_when_it_ends(end: str, steps: int, tokens: int) -> None:
    """In chunks of 64."""
    scheduler = make_scheduler()
    [request] = prompts(1, 150, PARAMS)
    scheduler.add(request)
    for _ in range(steps):
        plan = launched(scheduler)
        scheduler.commit(plan, outcome(plan))
    plan = launched(scheduler)
    if end == "fail":
        [delta] = scheduler.fail(plan, "it failed")
        assert delta.usage.prefilled_tokens == tokens
    else:
        {"abort": scheduler.abort, "pause": scheduler.pause, "preempt": scheduler.preempt}[end](request.id)
    assert request.usage.prefilled_tokens == tokens
    scheduler.check()


def test_all_of_it_from_the_first_token_on_and_what_was_cached_too() -> None:
    scheduler = make_scheduler()
    [request] = prompts(1, 40, PARAMS)
    scheduler.add(request)
    while scheduler.has_work:
        plan = launched(scheduler)
        scheduler.commit(plan, outcome(plan))
        assert request.usage.prefilled_tokens == 40
    [again] = prompts(1, 40, PARAMS)
    scheduler.add(again)
    launched(scheduler)
    scheduler.abort(again.id)
    assert (again.cached_tokens, again.usage.prefilled_tokens) == (32, 40)
