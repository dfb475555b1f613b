"""A plan is made before the result of the one before it is known."""

from collections.abc import Sequence

import pytest

from engine.config import BLOCK_TOKENS
from engine.request import STANDARD, FinishReason, Phase, Request, SamplingParams
from engine.scheduling import RowResult, ScheduledRow, Scheduler, StepPlan, StepResult
from engine.simulation import FakeExecutor, Transcript, make_request, run_to_completion
from tests.engine.scheduling.support import FOREVER, PREMIUM, family, make_scheduler, outcome, planned, prompts

STEP_NS = 1_000_003


def make_ahead(num_blocks: int = 64, **limits: int) -> Scheduler:
    scheduler = make_scheduler(num_blocks, **limits)
    scheduler.async_depth = 1
    return scheduler


def plan_of(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.check()
    return plan


def land(scheduler: Scheduler, plan: StepPlan, tokens: dict[str, int] | None = None) -> list[tuple[str, object]]:
    """Commit with token 1 for each row that samples, or that of `tokens`; returns who was given what."""
    drawn = tokens or {}

    def of_row(row: ScheduledRow) -> RowResult:
        return RowResult(token=drawn.get(row.request.id, 1) if row.samples else None)

    deltas = scheduler.commit(plan, outcome(plan, of_row), elapsed_ns=STEP_NS)
    scheduler.check()
    return [(delta.request_id, delta.finish_reason or delta.token_ids) for delta in deltas]


def answer_of(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, ignore_eos=True)


class TestPlans:
    def test_a_row_begins_where_the_one_in_flight_ends(self) -> None:
        scheduler = make_ahead(chunk_tokens=16)
        request = prompts(1, 20)[0]
        scheduler.add(request)
        plans = [plan_of(scheduler), plan_of(scheduler)]
        assert [planned(plan) for plan in plans] == [[("r0", 0, 16)], [("r0", 16, 4)]]
        land(scheduler, plans[0])
        third = plan_of(scheduler)
        assert planned(third) == [("r0", 20, 1)]
        assert len(request.tokens) == 20
        assert land(scheduler, plans[1]) == [("r0", (1,))]
        assert land(scheduler, third) == [("r0", (1,))]

    def test_one_beyond_the_one_that_is_waited_for_and_no_more(self) -> None:
        scheduler = make_ahead()
        scheduler.add(prompts(1, 20)[0])
        first, second = plan_of(scheduler), plan_of(scheduler)
        assert scheduler.in_flight == 2
        with pytest.raises(AssertionError, match="neither committed nor failed"):
            scheduler.schedule()
        with pytest.raises(AssertionError, match="launched first"):
            scheduler.commit(second, outcome(second))
        land(scheduler, first)
        land(scheduler, second)
        assert scheduler.in_flight == 0

    @pytest.mark.parametrize("max_tokens", [0, 1, 2, 5])
    def test_nothing_is_planned_beyond_the_last_token(self, max_tokens: int) -> None:
        scheduler, executor = make_ahead(chunk_tokens=16), FakeExecutor(64, async_depth=1)
        request = make_request("r", range(20), params=answer_of(max_tokens))
        ended = run_to_completion(scheduler, executor, [request])["r"]
        assert len(ended.token_ids) == max_tokens
        stats = scheduler.stats()
        assert stats.wasted_rows_total == 0
        assert stats.scheduled_tokens_total == 20 + max(max_tokens - 1, 0)

    def test_nor_beyond_the_window(self) -> None:
        scheduler = make_ahead(2)
        request = make_request("r", range(30), params=FOREVER)
        ended = run_to_completion(scheduler, FakeExecutor(2, async_depth=1), [request])["r"]
        assert len(ended.token_ids) == 2
        assert scheduler.stats().scheduled_tokens_total == 31

    def test_one_that_ends_in_flight_leaves_its_tokens_to_the_others(self) -> None:
        scheduler = make_ahead(step_tokens=8, max_running=8, chunk_tokens=8)
        scheduler.add(make_request("r0", range(4), arrival=0, params=answer_of(1)))
        plans = [plan_of(scheduler)]
        scheduler.add(make_request("r1", range(20), arrival=1))
        plans.append(plan_of(scheduler))
        assert [planned(plan) for plan in plans] == [[("r0", 0, 4)], [("r1", 0, 8)]]

    def test_forks_wait_until_the_prompt_is_computed_and_not_in_flight(self) -> None:
        scheduler = make_ahead()
        for request in family(2):
            scheduler.add(request)
        first, second = plan_of(scheduler), plan_of(scheduler)
        assert planned(second) == [("0", 40, 1)]
        land(scheduler, first)
        third = plan_of(scheduler)
        assert planned(third) == [("0", 41, 1), ("1", 39, 1)]
        assert len(third.copies) == 1
        land(scheduler, second)
        land(scheduler, third)

    def test_blocks_are_published_when_their_step_has_landed(self) -> None:
        scheduler = make_ahead()
        first, second = prompts(2, 40)
        second.tokens[:] = first.tokens
        scheduler.add(first)
        plans = [plan_of(scheduler)]
        scheduler.add(second)
        plans.append(plan_of(scheduler))
        assert ("r1", 0, 40) in planned(plans[1])
        assert first.block_table[0] not in second.block_table
        for plan in plans:
            land(scheduler, plan)
        third = make_request("r2", first.tokens[:40], arrival=2)
        scheduler.add(third)
        assert ("r2", 32, 8) in planned(plan_of(scheduler))


class TestEnds:
    def ended_by_a_stop_token(self) -> tuple[Scheduler, Request, StepPlan]:
        """The request has drawn its stop token; the plan in flight still continues it."""
        scheduler = make_ahead()
        request = make_request("r", range(20), eos_token_ids=(7,), tenant="t")
        scheduler.add(request)
        first, second = plan_of(scheduler), plan_of(scheduler)
        assert land(scheduler, first, {"r": 7}) == [("r", FinishReason.STOP)]
        return scheduler, request, second

    def test_a_stop_token_wastes_one_row(self) -> None:
        scheduler, request, in_flight = self.ended_by_a_stop_token()
        assert scheduler.stats().free_blocks == 64
        assert not scheduler.has_work
        assert scheduler.schedule() is None
        usage = request.usage
        assert land(scheduler, in_flight) == []
        assert (request.usage, usage.completion_tokens, usage.engine_ns) == (usage, 1, STEP_NS)
        assert scheduler.stats().wasted_rows_total == 1

    def test_nobody_is_charged_for_it_and_its_time_is_not_lost(self) -> None:
        scheduler, _, in_flight = self.ended_by_a_stop_token()
        waiting = scheduler.waiting_queues[1]
        charged = waiting.counter("t")
        land(scheduler, in_flight)
        assert waiting.counter("t") == charged
        premium, standard = scheduler.stats().classes
        assert (premium.wasted_rows, standard.wasted_rows, standard.wasted_ns) == (0, 1, STEP_NS)
        assert standard.attributed_ns == 2 * STEP_NS

    @pytest.mark.parametrize("landed", [0, 1])
    def test_an_abort_drops_all_rows_in_flight_and_frees_its_blocks_at_once(self, landed: int) -> None:
        scheduler = make_ahead()
        for request in prompts(2, 20):
            scheduler.add(request)
        plans = [plan_of(scheduler), plan_of(scheduler)]
        given = [land(scheduler, plan) for plan in plans[:landed]]
        free_blocks = scheduler.stats().free_blocks
        assert scheduler.abort("r0")
        scheduler.check()
        assert scheduler.stats().free_blocks == free_blocks + 2
        given += [land(scheduler, plan) for plan in plans[landed:]]
        assert given == [[("r0", (1,)), ("r1", (1,))]] * landed + [[("r1", (1,))]] * (2 - landed)
        assert scheduler.stats().wasted_rows_total == 2 - landed

    def test_a_row_behind_one_that_is_not_finite_comes_to_nothing(self) -> None:
        scheduler = make_ahead(chunk_tokens=16)
        first, second = prompts(2, 40)
        scheduler.add(first)
        scheduler.add(second)
        plans = [plan_of(scheduler), plan_of(scheduler)]
        deltas = scheduler.commit(plans[0], outcome(plans[0], lambda row: RowResult(finite=row.request is not first)))
        scheduler.check()
        assert [(delta.request_id, delta.finish_reason) for delta in deltas] == [("r0", FinishReason.ERROR)]
        assert land(scheduler, plans[1]) == []
        scheduler.add(make_request("again", first.tokens, arrival=7))
        assert ("again", 0, 16) in planned(plan_of(scheduler))

    def test_a_step_fails_while_the_next_is_in_flight(self) -> None:
        """Requests of the failed step end; one that joined with the next step continues."""
        scheduler = make_ahead()
        first, second = prompts(2, 20)
        scheduler.add(first)
        plans = [plan_of(scheduler)]
        scheduler.add(second)
        plans.append(plan_of(scheduler))
        deltas = scheduler.fail(plans[0], "the device is gone", elapsed_ns=STEP_NS)
        scheduler.check()
        assert [(delta.request_id, delta.error) for delta in deltas] == [("r0", "the device is gone")]
        assert land(scheduler, plans[1]) == [("r1", (1,))]
        assert scheduler.stats().wasted_rows_total == 1

    def test_both_steps_fail(self) -> None:
        scheduler = make_ahead()
        scheduler.add(prompts(1, 20)[0])
        first, second = plan_of(scheduler), plan_of(scheduler)
        assert [delta.request_id for delta in scheduler.fail(first, "gone")] == ["r0"]
        assert scheduler.fail(second, "gone") == []
        scheduler.check()
        assert scheduler.stats().failures_total == 1


class TestPreemption:
    def squeezed(self) -> tuple[Scheduler, Request, list[StepPlan]]:
        """A premium request takes the only slot; the victim has a token being drawn."""
        scheduler = make_ahead(max_running=1)
        victim = make_request("victim", range(20), arrival=0, params=FOREVER, tenant="v")
        scheduler.add(victim)
        land(scheduler, plan_of(scheduler))
        plans = [plan_of(scheduler)]
        scheduler.add(make_request("p", range(500, 510), arrival=1, params=answer_of(1), service_class=PREMIUM))
        plans.append(plan_of(scheduler))
        assert planned(plans[1]) == [("p", 0, 10)]
        return scheduler, victim, plans

    def test_the_token_that_was_being_drawn_is_drawn_again(self) -> None:
        scheduler, victim, plans = self.squeezed()
        assert victim.phase is Phase.WAITING
        assert land(scheduler, plans[0]) == []
        assert len(victim.tokens) == 21
        assert land(scheduler, plans[1]) == [("p", FinishReason.LENGTH)]
        again = plan_of(scheduler)
        assert planned(again) == [("victim", 16, 5)]
        assert land(scheduler, again) == [("victim", (1,))]
        assert scheduler.stats().wasted_rows_total == 0

    def test_the_class_that_it_was_for_bears_the_time_of_the_row(self) -> None:
        scheduler, victim, plans = self.squeezed()
        charged_ns, served = victim.engine_ns, scheduler.waiting_queues[1].counter("v")
        land(scheduler, plans[0])
        assert (victim.engine_ns, victim.recompute_ns) == (charged_ns, {"premium": STEP_NS})
        assert scheduler.waiting_queues[1].counter("v") == served
        premium, standard = scheduler.stats().classes
        assert (premium.recompute_ns, premium.attributed_ns, standard.attributed_ns) == (STEP_NS, STEP_NS, STEP_NS)

    def test_from_outside_at_any_moment(self) -> None:
        """It may run again before the rows of its former run have landed; they are not taken for those of the new."""
        scheduler = make_ahead()
        scheduler.add(prompts(1, 20)[0])
        first, second = plan_of(scheduler), plan_of(scheduler)
        scheduler.preempt("r0")
        assert land(scheduler, first) == []
        third = plan_of(scheduler)
        assert planned(third) == [("r0", 0, 20)]
        assert land(scheduler, second) == []
        assert land(scheduler, third) == [("r0", (1,))]

    def test_nobody_gives_way_for_blocks_that_come_back_when_a_step_lands(self) -> None:
        """Both fill their blocks in the same step, and one of them ends with it."""
        scheduler = make_ahead(4)
        for number, answer in enumerate((100, 17)):
            tokens = range(100 * number, 100 * number + BLOCK_TOKENS)
            scheduler.add(make_request(f"r{number}", tokens, arrival=number, params=answer_of(answer)))
        plans = [plan_of(scheduler), plan_of(scheduler)]
        for _ in range(BLOCK_TOKENS - 1):
            land(scheduler, plans.pop(0))
            plans.append(plan_of(scheduler))
        land(scheduler, plans.pop(0))
        assert scheduler.schedule() is None
        assert land(scheduler, plans.pop(0)) == [("r0", (1,)), ("r1", FinishReason.LENGTH)]
        assert planned(plan_of(scheduler)) == [("r0", 32, 1)]
        assert scheduler.stats().preemptions_total == 0


class TestAnswers:
    """The outputs equal those of a scheduler that waits for each step."""

    def requests(self) -> Sequence[Request]:
        params = SamplingParams(max_tokens=30, logprobs=0, prompt_logprobs=0)
        return [
            make_request(
                f"r{number}",
                [number] * (3 * number + 1),
                arrival=number,
                seed=number,
                eos_token_ids=(3, 5),
                params=params,
                service_class=(PREMIUM, STANDARD)[number % 2],
            )
            for number in range(12)
        ]

    @pytest.mark.parametrize("num_blocks", [4, 7, 40])
    def test_also_in_a_pool_that_is_too_small(self, num_blocks: int) -> None:
        given: list[dict[str, Transcript]] = []
        for async_depth in (0, 1):
            scheduler = make_scheduler(num_blocks, max_running=6, chunk_tokens=9)
            scheduler.async_depth = async_depth
            executor = FakeExecutor(num_blocks, 12, async_depth=async_depth)
            given.append(run_to_completion(scheduler, executor, self.requests()))
            assert scheduler.stats().free_blocks == num_blocks
        waited, ahead_of_it = given
        for name, each in waited.items():
            other = ahead_of_it[name]
            assert (each.token_ids, each.logprobs) == (other.token_ids, other.logprobs)
            assert each.prompt_logprobs == other.prompt_logprobs
            assert (each.finish_reason, each.stop_token) == (other.finish_reason, other.stop_token)
            assert each.usage is not None
            assert each.usage.completion_tokens == other.usage.completion_tokens


def test_the_times_of_all_steps_are_charged_to_the_nanosecond() -> None:
    scheduler = make_ahead(9, max_running=4, chunk_tokens=9)
    requests = [
        make_request(f"r{n}", [n] * 20, arrival=n, params=SamplingParams(max_tokens=60), eos_token_ids=(n % 2,))
        for n in range(6)
    ]
    for request in requests:
        scheduler.add(request)
    in_flight: list[StepPlan] = []
    steps = 0
    while (plan := scheduler.schedule()) is not None or in_flight:
        if plan is not None:
            in_flight.append(plan)
        if plan is None or len(in_flight) == 2:
            landed = in_flight.pop(0)
            rows = tuple(RowResult(token=steps % 31 if row.samples else None) for row in landed.rows)
            scheduler.commit(landed, StepResult(rows), elapsed_ns=STEP_NS)
            steps += 1
    stats = scheduler.stats()
    classes = stats.classes
    assert min(stats.preemptions_total, stats.wasted_rows_total) > 0
    assert sum(each.attributed_ns for each in classes) == steps * STEP_NS
    borne_ns = sum(request.engine_ns + sum(request.recompute_ns.values()) for request in requests)
    assert borne_ns + sum(each.wasted_ns for each in classes) == steps * STEP_NS
