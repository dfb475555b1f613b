"""The device has no room for a step: nothing of it counts, and it comes again in smaller pieces."""

from engine.request import FinishReason, Phase, TokenDelta
from engine.scheduling import Scheduler, StepPlan
from engine.scheduling.step_limits import RECOVERY_STEPS, StepSizeBackoff
from engine.simulation import make_request
from tests.engine.scheduling.support import FOREVER, family, make_scheduler, outcome, planned, prompts, step

STEP_NS = 1_000_003


def plan_of(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    assert plan is not None
    return plan


def give_back(scheduler: Scheduler, plan: StepPlan) -> list[TokenDelta]:
    deltas = scheduler.give_back(plan, "no room", elapsed_ns=STEP_NS)
    scheduler.check()
    return deltas


def given_back(scheduler: Scheduler) -> list[tuple[str, int, int]]:
    """The rows of the next step, for which there is no room."""
    plan = plan_of(scheduler)
    assert give_back(scheduler, plan) == []
    return planned(plan)


class TestLimit:
    def test_it_halves_and_is_never_nothing(self) -> None:
        limit = StepSizeBackoff(100)
        limit.lower(80)
        assert limit.tokens == 40
        for _ in range(10):
            limit.lower(40)
        assert limit.tokens == 1

    def test_a_step_smaller_than_it_was_allowed_is_what_counts(self) -> None:
        limit = StepSizeBackoff(100)
        limit.lower(9)
        assert limit.tokens == 4
        limit.lower(50)
        assert limit.tokens == 2

    def test_it_doubles_after_a_while_without_a_shortage(self) -> None:
        limit = StepSizeBackoff(100)
        limit.lower(64)
        seen = []
        for _ in range(3 * RECOVERY_STEPS):
            limit.record_step()
            seen.append(limit.tokens)
        assert seen == [32] * (RECOVERY_STEPS - 1) + [64] * RECOVERY_STEPS + [100] * (RECOVERY_STEPS + 1)

    def test_a_shortage_starts_the_wait_anew(self) -> None:
        limit = StepSizeBackoff(100)
        limit.lower(64)
        for _ in range(RECOVERY_STEPS - 1):
            limit.record_step()
        limit.lower(32)
        limit.record_step()
        assert limit.tokens == 16


class TestPrefill:
    def test_chunks_are_halved_until_there_is_room(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(prompts(1, 100)[0])
        assert [given_back(scheduler) for _ in range(3)] == [[("r0", 0, 64)], [("r0", 0, 32)], [("r0", 0, 16)]]
        assert [step(scheduler)[0] for _ in range(3)] == [[("r0", 0, 8)], [("r0", 8, 8)], [("r0", 16, 8)]]

    def test_what_was_computed_before_is_kept_and_nothing_is_published(self) -> None:
        scheduler = make_scheduler(chunk_tokens=16)
        request = prompts(1, 100)[0]
        scheduler.add(request)
        step(scheduler)
        table = request.block_table.copy()
        given_back(scheduler)
        assert (request.computed, request.scheduled, request.block_table) == (16, 16, table)
        assert request.phase is Phase.RUNNING
        scheduler.abort("r0")
        scheduler.add(make_request("same", request.tokens, arrival=5))
        assert step(scheduler)[0] == [("same", 16, 8)]

    def test_decodes_go_on_beside_it(self) -> None:
        scheduler = make_scheduler()
        first, second = prompts(2, 40)
        scheduler.add(first)
        step(scheduler)
        scheduler.add(second)
        assert given_back(scheduler) == [("r0", 40, 1), ("r1", 0, 40)]
        assert step(scheduler)[0] == [("r0", 40, 1), ("r1", 0, 19)]


class TestDecode:
    def decoding(self, lengths: tuple[int, ...]) -> Scheduler:
        scheduler = make_scheduler(max_running=4)
        for number, tokens in enumerate(lengths):
            scheduler.add(
                make_request(f"r{number}", range(100 * number, 100 * number + tokens), arrival=number, params=FOREVER)
            )
        step(scheduler)
        return scheduler

    def test_where_no_step_is_smaller_the_largest_request_makes_room(self) -> None:
        scheduler = self.decoding((10, 30, 20))
        plan = plan_of(scheduler)
        [delta] = give_back(scheduler, plan)
        assert (delta.request_id, delta.finish_reason, delta.error) == ("r1", FinishReason.ERROR, "no room")
        assert delta.usage is not None
        assert step(scheduler)[0] == [("r0", 10, 1), ("r2", 20, 1)]
        assert scheduler.stats().failures_total == 1

    def test_all_leave_one_after_another_where_there_is_no_room_at_all(self) -> None:
        scheduler = self.decoding((10, 30, 20))
        left = []
        while (plan := scheduler.schedule()) is not None:
            left += [delta.request_id for delta in give_back(scheduler, plan)]
        assert left == ["r1", "r2", "r0"]
        assert scheduler.stats().free_blocks == 64

    def test_whose_row_was_dropped_is_no_reason_for_another_to_leave(self) -> None:
        scheduler = self.decoding((10, 30, 20))
        plan = plan_of(scheduler)
        scheduler.abort("r1")
        assert give_back(scheduler, plan) == []
        assert step(scheduler)[0] == [("r0", 10, 1), ("r2", 20, 1)]

    def test_the_time_is_nobodys(self) -> None:
        scheduler = self.decoding((10, 30))
        charged = {request.id: request.engine_ns for request in scheduler.running}
        predicted = scheduler.cost_model.coefficients
        give_back(scheduler, plan_of(scheduler))
        standard = scheduler.stats().classes[1]
        assert (standard.wasted_rows, standard.wasted_ns, standard.attributed_ns) == (2, STEP_NS, STEP_NS)
        assert all(request.engine_ns == charged[request.id] for request in scheduler.running)
        assert scheduler.cost_model.coefficients == predicted


def test_a_fork_whose_block_may_not_have_been_copied_starts_again() -> None:
    scheduler = make_scheduler()
    for request in family(2):
        scheduler.add(request)
    step(scheduler)
    scheduler.add(make_request("other", range(900, 920), arrival=9))
    plan = plan_of(scheduler)
    assert planned(plan) == [("0", 40, 1), ("1", 39, 1), ("other", 0, 20)]
    assert len(plan.copies) == 1
    assert give_back(scheduler, plan) == []
    first, start, _ = next(row for _ in range(9) for row in step(scheduler)[0] if row[0] == "1")
    assert (first, start) == ("1", 32)


def test_what_was_launched_behind_it_comes_to_nothing_but_for_others() -> None:
    scheduler = make_scheduler(chunk_tokens=16)
    scheduler.async_depth = 1
    scheduler.add(prompts(1, 40)[0])
    plans = [plan_of(scheduler)]
    scheduler.add(make_request("other", range(900, 910), arrival=1, params=FOREVER))
    plans.append(plan_of(scheduler))
    assert [planned(plan) for plan in plans] == [[("r0", 0, 16)], [("r0", 16, 16), ("other", 0, 10)]]
    assert give_back(scheduler, plans[0]) == []
    again = plan_of(scheduler)
    assert planned(again) == [("r0", 0, 7), ("other", 10, 1)]
    landed = scheduler.commit(plans[1], outcome(plans[1]), elapsed_ns=STEP_NS)
    scheduler.check()
    assert [(delta.request_id, delta.token_ids) for delta in landed] == [("other", (1,))]
    scheduler.commit(again, outcome(again), elapsed_ns=STEP_NS)
    scheduler.check()
    stats = scheduler.stats()
    assert stats.wasted_rows_total == 2
    assert sum(each.attributed_ns for each in stats.classes) == 3 * STEP_NS
