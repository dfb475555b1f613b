"""Requests that share the prompt of another."""

import pytest

from engine.errors import UnservableRequest
from engine.request import SamplingParams
from engine.simulation import FakeExecutor, make_request, run_to_completion
from tests.engine.scheduling.support import family, make_scheduler, step


def test_they_wait_for_the_prompt_and_compute_one_token_of_it() -> None:
    scheduler = make_scheduler(chunk_tokens=30)
    for request in family(3):
        scheduler.add(request)
    assert step(scheduler)[0] == [("0", 0, 30)]
    assert step(scheduler)[0] == [("0", 30, 10)]
    assert step(scheduler)[0] == [("0", 40, 1), ("1", 39, 1), ("2", 39, 1)]


def test_a_copy_is_in_the_plan_of_the_row_that_needs_it() -> None:
    scheduler = make_scheduler()
    requests = family(2)
    for request in requests:
        scheduler.add(request)
    step(scheduler)
    plan = scheduler.schedule()
    assert plan.copies == ((requests[0].block_table[2], requests[1].block_table[2]),)


def test_their_answers_are_their_own() -> None:
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    alone = {}
    for request in family(4, params=params):
        request.fork_of = None
        alone |= run_to_completion(make_scheduler(), FakeExecutor(64), [request])
    scheduler = make_scheduler()
    together = run_to_completion(scheduler, FakeExecutor(64), family(4, params=params))
    assert {name: ended.token_ids for name, ended in together.items()} == {
        name: ended.token_ids for name, ended in alone.items()
    }
    assert len({tuple(ended.token_ids) for ended in together.values()}) == 4
    usages = [ended.usage for ended in together.values()]
    assert [usage.cached_tokens for usage in usages if usage is not None] == [0, 39, 39, 39]
    assert scheduler.stats().scheduled_tokens_total == 40 + 3 + 4 * 29


def test_those_behind_do_not_wait_with_them() -> None:
    scheduler = make_scheduler(chunk_tokens=16)
    for request in family(3):
        scheduler.add(request)
    scheduler.add(make_request("other", [1, 2, 3], arrival=9))
    assert step(scheduler)[0] == [("0", 0, 16), ("other", 0, 3)]


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_without_the_parent_they_go_the_ordinary_way(steps: int) -> None:
    scheduler = make_scheduler(chunk_tokens=32)
    for request in family(2):
        scheduler.add(request)
    for _ in range(steps):
        step(scheduler)
    scheduler.abort("0")
    assert step(scheduler)[0] == [("1", 32 if steps else 0, 8 if steps else 32)]


def test_a_parent_that_was_refused_is_not_waited_for() -> None:
    scheduler = make_scheduler(3)
    parent = make_request("parent", range(48))
    with pytest.raises(UnservableRequest):
        scheduler.add(parent)
    params = SamplingParams(max_tokens=0)
    scheduler.add(make_request("child", range(48), arrival=1, params=params, fork_of=parent))
    assert step(scheduler)[0] == [("child", 0, 48)]


def test_a_preempted_fork_goes_the_ordinary_way() -> None:
    scheduler = make_scheduler()
    requests = family(2)
    for request in requests:
        scheduler.add(request)
    step(scheduler)
    step(scheduler)
    scheduler.preempt("1")
    assert requests[1].fork_of is None
    assert step(scheduler)[0][1] == ("1", 32, 9)


def test_a_preempted_parent_is_waited_for() -> None:
    scheduler = make_scheduler(chunk_tokens=20)
    for request in family(2):
        scheduler.add(request)
    step(scheduler)
    scheduler.preempt("0")
    assert [step(scheduler)[0] for _ in range(3)] == [[("0", 16, 20)], [("0", 36, 4)], [("0", 40, 1), ("1", 39, 1)]]


def test_a_fork_comes_after_its_parent() -> None:
    parent = make_request("parent", [1], arrival=5)
    with pytest.raises(AssertionError):
        make_scheduler().add(make_request("child", [1], arrival=4, fork_of=parent))
