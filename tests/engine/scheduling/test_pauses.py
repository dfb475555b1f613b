"""A request whose deltas are not read holds no capacity, takes no rows, delays no other and resumes in place."""

from engine.config import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import Phase, SamplingParams
from engine.scheduling import Scheduler
from engine.simulation import make_request
from tests.engine.scheduling.support import CLASSES, family, make_scheduler, outcome, planned, prompts, step

SECOND_NS = 1_000_000_000


def tokens_after(scheduler: Scheduler, request_id: str, steps: int) -> list[int]:
    """Tokens that the request receives in `steps` steps of a model whose output is the number of tokens it has read."""
    given: list[int] = []
    for _ in range(steps):
        plan = scheduler.schedule()
        assert plan is not None
        result = outcome(plan)
        rows = tuple(
            row_result._replace(token=row.start + row.tokens if row.samples else None)
            for row, row_result in zip(plan.rows, result.rows, strict=True)
        )
        for delta in scheduler.commit(plan, type(result)(rows)):
            given += delta.token_ids if delta.request_id == request_id else ()
        scheduler.check()
    return given


def test_one_that_is_paused_gets_no_rows_and_keeps_nothing_busy() -> None:
    scheduler = make_scheduler()
    read, unread = prompts(2, 20)
    scheduler.add(read)
    scheduler.add(unread)
    step(scheduler)
    assert scheduler.pause(unread.id)
    for _ in range(5):
        rows, _ = step(scheduler)
        assert [row[0] for row in rows] == [read.id]
    scheduler.abort(read.id)
    assert not scheduler.has_work
    stats = scheduler.stats()
    assert (stats.running, stats.waiting, stats.paused) == (0, 0, 1)
    assert stats.free_blocks == stats.num_blocks


def test_it_goes_on_from_its_own_blocks_where_nobody_needed_them() -> None:
    scheduler = make_scheduler()
    (request,) = prompts(1, 40)
    scheduler.add(request)
    tokens_after(scheduler, request.id, 5)
    tokens = request.tokens.copy()
    scheduler.pause(request.id)
    scheduler.resume(request.id)
    assert request.tokens == tokens
    rows, _ = step(scheduler)
    assert rows == [(request.id, 32, len(tokens) - 32)]
    assert request.cached_tokens == 0


def test_what_it_is_given_is_what_it_is_given_without_pauses() -> None:
    (straight,), (paused,) = prompts(1, 40), prompts(1, 40)
    scheduler = make_scheduler()
    scheduler.add(straight)
    expected = tokens_after(scheduler, straight.id, 30)
    scheduler = make_scheduler()
    scheduler.add(paused)
    given: list[int] = []
    for _ in range(10):
        given += tokens_after(scheduler, paused.id, 3)
        assert scheduler.pause(paused.id)
        assert scheduler.resume(paused.id)
    assert given == expected


def test_what_is_in_flight_is_dropped_and_drawn_again() -> None:
    scheduler = make_scheduler()
    (request,) = prompts(1, 20)
    scheduler.add(request)
    step(scheduler)
    known = len(request.tokens)
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.pause(request.id)
    assert scheduler.commit(plan, outcome(plan)) == []
    assert len(request.tokens) == known
    scheduler.check()


def test_its_slot_and_its_blocks_are_there_for_others() -> None:
    """The paused request frees all its capacity: one that fills the whole pool is admitted without a preemption."""
    scheduler = make_scheduler(8, max_running=1)
    unread, large = prompts(2, 100)
    scheduler.add(unread)
    for _ in range(3):
        step(scheduler)
    scheduler.add(large)
    assert planned(scheduler.schedule())[0][0] == unread.id
    scheduler.pause(unread.id)
    scheduler.check()
    scheduler.async_depth = 1
    assert planned(scheduler.schedule())[0][0] == large.id
    assert scheduler.stats().preemptions_total == 0


def test_it_keeps_its_place() -> None:
    scheduler = make_scheduler(max_running=1)
    first, second, third = prompts(3, 20)
    for request in (first, second, third):
        scheduler.add(request)
    step(scheduler)
    scheduler.pause(second.id)
    scheduler.pause(first.id)
    step(scheduler)
    assert third.phase is Phase.RUNNING
    scheduler.resume(second.id)
    scheduler.resume(first.id)
    scheduler.abort(third.id)
    step(scheduler)
    assert (first.phase, second.phase) == (Phase.RUNNING, Phase.WAITING)


def test_pauses_do_not_make_it_immune() -> None:
    """Being preempted often does. Reading slowly must not."""
    scheduler = make_scheduler()
    (request,) = prompts(1, 20)
    scheduler.add(request)
    for _ in range(5):
        step(scheduler)
        scheduler.pause(request.id)
        scheduler.resume(request.id)
    assert (request.pauses, request.preemptions) == (5, 0)


def test_forks_do_not_wait_for_the_prompt_of_one_that_is_paused() -> None:
    scheduler = make_scheduler(chunk_tokens=16)
    parent, child = family(2)
    scheduler.add(parent)
    scheduler.add(child)
    step(scheduler)
    assert child.phase is Phase.WAITING
    scheduler.pause(parent.id)
    for _ in range(4):
        step(scheduler)
    assert child.output_tokens > 0
    scheduler.resume(parent.id)
    step(scheduler)
    assert parent.phase is Phase.RUNNING


def test_one_that_waits_is_paused_and_one_that_is_paused_is_aborted() -> None:
    scheduler = make_scheduler(max_running=1)
    first, second = prompts(2, 20)
    scheduler.add(first)
    scheduler.add(second)
    step(scheduler)
    assert scheduler.pause(second.id)
    assert not scheduler.pause(second.id)
    assert scheduler.abort(second.id)
    assert not scheduler.resume(second.id)
    assert not scheduler.pause("nobody")
    assert scheduler.stats().paused == 0
    scheduler.check()


def test_pauses_are_timed_and_are_no_wait() -> None:
    scheduler = Scheduler(SchedulerConfig(max_running=1, classes=CLASSES), KVCacheManager(BlockPool(64)), 4096)
    request = make_request("r", range(20), arrival=0, params=SamplingParams(max_tokens=100, ignore_eos=True))
    scheduler.add(request, 1 * SECOND_NS)
    scheduler.pause(request.id, 2 * SECOND_NS)
    scheduler.resume(request.id, 5 * SECOND_NS)
    plan = scheduler.schedule(7 * SECOND_NS)
    assert plan is not None
    scheduler.commit(plan, outcome(plan))
    scheduler.pause(request.id, 8 * SECOND_NS)
    scheduler.abort(request.id, 10 * SECOND_NS)
    assert (request.usage.queue_ns, request.usage.paused_ns) == (3 * SECOND_NS, 5 * SECOND_NS)
    stats = scheduler.stats()
    assert (stats.pauses_total, stats.paused_ns_total) == (2, 5 * SECOND_NS)
