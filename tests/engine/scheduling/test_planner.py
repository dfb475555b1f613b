"""The rows of a step, admission, and victims of growth."""

import itertools

import pytest

from engine.config import BLOCK_TOKENS
from engine.request import STANDARD, Phase, SamplingParams, Usage
from engine.simulation import FakeExecutor, Transcript, make_request, run_to_completion
from tests.engine.scheduling.support import FOREVER, PREMIUM, make_scheduler, outcome, planned, prompts, step


class TestBudget:
    def test_nothing_to_do_is_no_plan(self) -> None:
        scheduler = make_scheduler()
        assert scheduler.schedule() is None
        assert not scheduler.has_work

    def test_a_prompt_is_computed_in_chunks_and_then_drawn_from(self) -> None:
        scheduler = make_scheduler(chunk_tokens=20)
        scheduler.add(prompts(1, 50)[0])
        steps = [step(scheduler) for _ in range(4)]
        assert [rows for rows, _ in steps] == [[("r0", 0, 20)], [("r0", 20, 20)], [("r0", 40, 10)], [("r0", 50, 1)]]
        assert [[delta.token_ids for delta in deltas] for _, deltas in steps] == [[], [], [(1,)], [(1,)]]

    def test_only_the_row_that_reaches_the_last_token_samples(self) -> None:
        scheduler = make_scheduler(chunk_tokens=20)
        scheduler.add(prompts(1, 40)[0])
        for samples in (False, True, True):
            plan = scheduler.schedule()
            assert plan is not None
            assert [row.samples for row in plan.rows] == [samples]
            scheduler.commit(plan, outcome(plan))

    def test_decodes_are_not_held_up_by_prompts_before_them(self) -> None:
        """SGLang 32549: under a load of prompts, one token in 24 seconds."""
        scheduler = make_scheduler(step_tokens=16, max_running=4)
        decoding = make_request("decoding", [1, 2], arrival=5, params=FOREVER)
        scheduler.add(decoding)
        step(scheduler)
        for request in prompts(3, 200):
            scheduler.add(request)
        for _ in range(30):
            rows, deltas = step(scheduler)
            assert ("decoding", len(decoding.tokens) - 2, 1) in rows
            assert [delta.request_id for delta in deltas][-1:] == ["decoding"]
            assert sum(tokens for _, _, tokens in rows) <= 16

    def test_the_budget_goes_to_the_first_in_order(self) -> None:
        scheduler = make_scheduler(step_tokens=30, chunk_tokens=20)
        for request in prompts(3, 40):
            scheduler.add(request)
        assert step(scheduler)[0] == [("r0", 0, 20), ("r1", 0, 10)]
        assert step(scheduler)[0] == [("r0", 20, 20), ("r1", 10, 10)]

    def test_an_idle_engine_gives_a_prompt_all_it_has(self) -> None:
        scheduler = make_scheduler(step_tokens=100, chunk_tokens=100)
        scheduler.add(prompts(1, 300)[0])
        assert step(scheduler)[0] == [("r0", 0, 100)]

    def test_counters(self) -> None:
        scheduler = make_scheduler(max_running=2)
        for request in prompts(3, 20):
            scheduler.add(request)
        step(scheduler)
        step(scheduler)
        stats = scheduler.stats()
        assert (stats.running, stats.waiting, stats.steps_total) == (2, 1, 2)
        assert (stats.num_blocks, stats.free_blocks) == (64, 60)
        assert stats.scheduled_tokens_total == 42


class TestAdmission:
    def test_slots_are_small_numbers_lowest_free_first(self) -> None:
        scheduler = make_scheduler(max_running=3)
        requests = prompts(5, 4)
        for request in requests:
            scheduler.add(request)
        step(scheduler)
        assert [request.slot for request in requests] == [0, 1, 2, None, None]
        scheduler.abort("r2")
        scheduler.abort("r1")
        step(scheduler)
        assert [request.slot for request in requests] == [0, None, None, 1, 2]

    def test_class_then_arrival(self) -> None:
        scheduler = make_scheduler(max_running=2)
        for arrival, service_class in ((1, STANDARD), (2, PREMIUM), (3, STANDARD), (4, PREMIUM)):
            scheduler.add(make_request(f"r{arrival}", [arrival], arrival=arrival, service_class=service_class))
        assert [name for name, _, _ in step(scheduler)[0]] == ["r2", "r4"]

    def test_nobody_overtakes_one_that_does_not_fit(self) -> None:
        scheduler = make_scheduler(8)
        small, large, late = prompts(3, 16)
        large.tokens = list(range(7 * BLOCK_TOKENS))
        large.prompt_tokens = len(large.tokens)
        for request in (small, large, late):
            scheduler.add(request)
        assert [name for name, _, _ in step(scheduler)[0]] == ["r0"]
        assert [name for name, _, _ in step(scheduler)[0]] == ["r0"]

    @pytest.mark.parametrize(("num_blocks", "admitted"), [(3, 1), (7, 1), (8, 2), (11, 2), (12, 3)])
    def test_admission_leaves_a_growth_block_for_each(self, num_blocks: int, admitted: int) -> None:
        """n prompts of three blocks need 3 n, and n more in reserve once n > 1."""
        scheduler = make_scheduler(num_blocks, step_tokens=1000, chunk_tokens=1000)
        for request in prompts(3, 40):
            scheduler.add(request)
        assert len(step(scheduler)[0]) == admitted

    def test_an_admission_is_not_undone(self) -> None:
        """vLLM 25538: admitted, preempted for want of a block, admitted again, step after step."""
        scheduler = make_scheduler(12, max_running=4, step_tokens=200, chunk_tokens=200)
        for request in prompts(6, 30, SamplingParams(max_tokens=100, ignore_eos=True)):
            scheduler.add(request)
        admitted_at, preemptions, executor = -100, 0, FakeExecutor(12)
        for number in itertools.count():
            waiting = scheduler.stats().waiting
            plan = scheduler.schedule()
            if plan is None:
                break
            stats = scheduler.stats()
            if stats.preemptions_total > preemptions:
                assert number - admitted_at > BLOCK_TOKENS
                preemptions = stats.preemptions_total
            elif stats.waiting < waiting:
                admitted_at = number
            scheduler.commit(plan, executor.execute(plan).result())
        assert 0 < preemptions < 12

    def test_a_prefix_hit_is_not_computed_again(self) -> None:
        scheduler = make_scheduler()
        first, second = (
            make_request(f"r{n}", range(40), arrival=n, params=SamplingParams(max_tokens=2)) for n in (0, 1)
        )
        executor = FakeExecutor(64)
        run_to_completion(scheduler, executor, [first])
        scheduler.add(second)
        plan = scheduler.schedule()
        assert planned(plan) == [("r1", 32, 8)]
        assert plan is not None
        scheduler.commit(plan, executor.execute(plan).result())
        ended = run_to_completion(scheduler, executor)["r1"]
        assert ended.usage.cached_tokens == 32
        assert scheduler.stats().cached_tokens_total == 32


class TestPreemption:
    def test_the_last_in_order_gives_way_before_any_row_is_made(self) -> None:
        """vLLM 23347, 49097: a victim that had its row already had to be unwound, or left a hole."""
        scheduler = make_scheduler(8, max_running=4, step_tokens=200)
        requests = prompts(3, 15)
        requests[1].service_class = PREMIUM
        for request in requests:
            scheduler.add(request)
        while scheduler.stats().preemptions_total == 0:
            rows, _ = step(scheduler)
        assert requests[2].phase is Phase.WAITING
        assert [name for name, _, _ in rows] == ["r1", "r0"]

    def test_as_many_give_way_as_are_needed_and_no_more(self) -> None:
        """Four requests fill eight blocks and all need a ninth at once: two of two blocks make way for two."""
        scheduler = make_scheduler(8, max_running=4, step_tokens=200)
        for request in prompts(4, 16):
            scheduler.add(request)
        while scheduler.stats().preemptions_total == 0:
            assert scheduler.stats().running in (0, 4)
            rows, _ = step(scheduler)
        assert rows == [("r0", 32, 1), ("r1", 32, 1)]
        assert scheduler.stats().preemptions_total == 2
        assert scheduler.stats().free_blocks == 2

    def test_a_victim_keeps_its_place_its_tokens_and_nothing_else(self) -> None:
        scheduler = make_scheduler(max_running=2)
        victim, other, third = prompts(3, 20)
        for request in (victim, other, third):
            scheduler.add(request)
        for _ in range(5):
            step(scheduler)
        tokens = list(victim.tokens)
        assert scheduler.preempt("r0")
        scheduler.check()
        assert (victim.tokens, victim.arrival, victim.preemptions) == (tokens, 0, 1)
        assert (victim.slot, victim.computed, victim.block_table) == (None, 0, [])
        assert step(scheduler)[0] == [("r1", len(other.tokens) - 2, 1), ("r0", 16, len(tokens) - 16)]

    def test_only_what_runs_is_preempted(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(prompts(1, 4)[0])
        assert not scheduler.preempt("r0")
        assert not scheduler.preempt("who")

    def test_usage_counts_preemptions_and_the_first_hit_only(self) -> None:
        scheduler, executor = make_scheduler(), FakeExecutor(64)
        run_to_completion(scheduler, executor, [make_request("warm", range(40))])
        request = make_request("r", range(40), arrival=1, params=SamplingParams(max_tokens=40, ignore_eos=True))
        scheduler.add(request)
        for _ in range(30):
            plan = scheduler.schedule()
            assert plan is not None
            scheduler.commit(plan, executor.execute(plan).result())
        scheduler.preempt("r")
        ended = run_to_completion(scheduler, executor)["r"]
        assert ended.usage == Usage(40, 40, cached_tokens=32, preemptions=1, prefilled_tokens=40)

    def test_tokens_do_not_depend_on_company_memory_or_chunks(self) -> None:
        params = SamplingParams(max_tokens=40)
        alone: dict[str, Transcript] = {}
        for request in prompts(6, 20, params):
            alone |= run_to_completion(make_scheduler(), FakeExecutor(64), [request])
        crowded = make_scheduler(7, step_tokens=8, chunk_tokens=3)
        together = run_to_completion(crowded, FakeExecutor(7), prompts(6, 20, params))
        assert crowded.stats().preemptions_total > 0
        assert {name: ended.token_ids for name, ended in together.items()} == {
            name: ended.token_ids for name, ended in alone.items()
        }
