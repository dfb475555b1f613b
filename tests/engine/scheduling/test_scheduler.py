"""The scheduler, one test for each thing it promises.

Most run it with the fake executor, whose tokens and reads tell whether KV was ever mixed up; some hand it
outcomes made here.
"""

import itertools
from collections.abc import Callable

import pytest

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import (
    STANDARD,
    FinishReason,
    Phase,
    Request,
    SamplingParams,
    ServiceClass,
    TokenDelta,
    TokenLogprob,
    UnservableRequest,
    Usage,
)
from engine.scheduling import RowResult, ScheduledRow, Scheduler, StepPlan, StepResult
from engine.simulation import FakeExecutor, Transcript, make_request, run_to_completion

PREMIUM = ServiceClass("premium", priority=0)
CLASSES = (PREMIUM, STANDARD)
"""Without a reserve, so that all blocks and slots are there for all."""
FOREVER = SamplingParams(max_tokens=100_000, ignore_eos=True)


def make_scheduler(
    num_blocks: int = 64,
    *,
    max_running: int = 8,
    step_tokens: int = 64,
    chunk_tokens: int = 64,
    max_model_len: int = 4096,
    prefix_cache: bool = True,
) -> Scheduler:
    config = SchedulerConfig(
        max_running=max_running, step_tokens=step_tokens, chunk_tokens=chunk_tokens, classes=CLASSES
    )
    return Scheduler(config, KVCacheManager(BlockPool(num_blocks), prefix_cache=prefix_cache), max_model_len)


def prompts(count: int, tokens: int, params: SamplingParams = FOREVER) -> list[Request]:
    """Requests whose prompts have nothing in common."""
    return [
        make_request(f"r{number}", range(1000 * number, 1000 * number + tokens), arrival=number, params=params)
        for number in range(count)
    ]


def planned(plan: StepPlan | None) -> list[tuple[str, int, int]]:
    """The rows as (request, first position, tokens)."""
    return [] if plan is None else [(row.request.id, row.start, row.tokens) for row in plan.rows]


def outcome(plan: StepPlan, of_row: Callable[[ScheduledRow], RowResult] | None = None) -> StepResult:
    """By default, every row that samples draws token 1."""
    of_row = of_row or (lambda row: RowResult(token=1 if row.samples else None))
    return StepResult(tuple(of_row(row) for row in plan.rows))


def step(scheduler: Scheduler) -> tuple[list[tuple[str, int, int]], list[TokenDelta]]:
    plan = scheduler.schedule()
    assert plan is not None
    deltas = scheduler.commit(plan, outcome(plan))
    scheduler.check()
    return planned(plan), deltas


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
        assert ended.usage is not None
        assert ended.usage.cached_tokens == 32
        assert scheduler.stats().cached_tokens_total == 32


class TestLimits:
    @pytest.mark.parametrize("max_tokens", [1, 100, None])
    @pytest.mark.parametrize(("prompt_tokens", "servable"), [(30, True), (31, True), (32, False), (33, False)])
    def test_a_prompt_at_the_limit_of_the_pool(
        self, prompt_tokens: int, servable: bool, max_tokens: int | None
    ) -> None:
        """The pool holds 32 tokens: a prompt of 31 leaves room for one."""
        scheduler = make_scheduler(2)
        request = make_request("r", range(prompt_tokens), params=SamplingParams(max_tokens=max_tokens))
        if not servable:
            with pytest.raises(UnservableRequest, match="prompt and answer can have 32"):
                scheduler.add(request)
            assert not scheduler.has_work
            return
        ended = run_to_completion(scheduler, FakeExecutor(2), [request])["r"]
        assert len(ended.token_ids) == min(max_tokens or 100, 32 - prompt_tokens)
        assert ended.finish_reason is FinishReason.LENGTH

    @pytest.mark.parametrize(("prompt_tokens", "servable"), [(19, True), (20, False)])
    def test_a_prompt_at_the_limit_of_the_window(self, prompt_tokens: int, servable: bool) -> None:
        scheduler = make_scheduler(max_model_len=20)
        request = make_request("r", range(prompt_tokens))
        if servable:
            assert len(run_to_completion(scheduler, FakeExecutor(64), [request])["r"].token_ids) == 1
        else:
            with pytest.raises(UnservableRequest):
                scheduler.add(request)

    @pytest.mark.parametrize(("prompt_tokens", "servable"), [(32, True), (33, False)])
    def test_a_prompt_without_an_answer_may_fill_the_pool(self, prompt_tokens: int, servable: bool) -> None:
        scheduler = make_scheduler(2)
        request = make_request("r", range(prompt_tokens), params=SamplingParams(max_tokens=0))
        if servable:
            run_to_completion(scheduler, FakeExecutor(2), [request])
        else:
            with pytest.raises(UnservableRequest):
                scheduler.add(request)

    def test_an_empty_prompt_is_refused(self) -> None:
        with pytest.raises(UnservableRequest, match="no tokens"):
            make_scheduler().add(make_request("r", []))

    @pytest.mark.parametrize("num_blocks", range(1, 9))
    def test_tiny_pools_serve_all(self, num_blocks: int) -> None:
        """Each runs to the end of the pool, so that alone it takes all of it."""
        scheduler = make_scheduler(num_blocks, max_running=4)
        requests = [make_request(f"r{n}", [n] * (n + 1), arrival=n, params=FOREVER) for n in range(6)]
        for ended in run_to_completion(scheduler, FakeExecutor(num_blocks), requests).values():
            assert ended.finish_reason is FinishReason.LENGTH
            assert ended.usage is not None
            assert ended.usage.prompt_tokens + ended.usage.completion_tokens == num_blocks * BLOCK_TOKENS
        assert scheduler.stats().free_blocks == num_blocks

    def test_ten_thousand_at_once_leave_in_order(self) -> None:
        scheduler = make_scheduler(max_running=64, step_tokens=2000, chunk_tokens=2000, prefix_cache=False)
        for number in range(10_000):
            scheduler.add(make_request(str(number), [number], arrival=number, params=SamplingParams(max_tokens=1)))
        ended: list[int] = []
        while (plan := scheduler.schedule()) is not None:
            ended += [int(delta.request_id) for delta in scheduler.commit(plan, outcome(plan))]
        assert ended == list(range(10_000))


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
        assert ended.usage == Usage(40, 40, cached_tokens=32, preemptions=1)

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


class TestAbort:
    def test_at_any_moment_all_is_free_at_once(self) -> None:
        """vLLM 46283: what is aborted at an awkward moment must not keep its blocks."""
        for aborted_at in range(8):
            for in_flight in (False, True):
                scheduler = make_scheduler(max_running=2, chunk_tokens=8)
                for request in prompts(3, 20):
                    scheduler.add(request)
                for _ in range(aborted_at):
                    step(scheduler)
                plan = scheduler.schedule() if in_flight else None
                for name in ("r0", "r1", "r2"):
                    assert scheduler.abort(name)
                    assert not scheduler.abort(name)
                assert scheduler.stats().free_blocks == 64
                if plan is not None:
                    assert scheduler.commit(plan, outcome(plan)) == []
                scheduler.check()
                assert scheduler.schedule() is None

    def test_a_stranger_is_not_aborted(self) -> None:
        assert not make_scheduler().abort("who")

    def test_a_neighbour_of_an_aborted_row_gets_its_token(self) -> None:
        scheduler = make_scheduler()
        for request in prompts(2, 20):
            scheduler.add(request)
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.abort("r0")
        deltas = scheduler.commit(plan, outcome(plan))
        assert [(delta.request_id, delta.token_ids) for delta in deltas] == [("r1", (1,))]

    def test_a_row_that_is_preempted_in_flight_is_computed_again(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(prompts(1, 20)[0])
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.preempt("r0")
        assert scheduler.commit(plan, outcome(plan)) == []
        assert step(scheduler)[0] == [("r0", 0, 20)]

    def test_one_plan_at_a_time(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(prompts(1, 20)[0])
        plan = scheduler.schedule()
        assert plan is not None
        with pytest.raises(AssertionError, match="neither committed nor failed"):
            scheduler.schedule()
        scheduler.commit(plan, outcome(plan))
        with pytest.raises(AssertionError, match="not the plan in flight"):
            scheduler.commit(plan, outcome(plan))


class TestFailure:
    def test_a_row_that_is_not_finite_fails_alone_and_is_not_cached(self) -> None:
        scheduler = make_scheduler(chunk_tokens=16)
        first, second = prompts(2, 40)
        for request in (first, second):
            scheduler.add(request)
        step(scheduler)
        plan = scheduler.schedule()
        assert plan is not None
        deltas = scheduler.commit(plan, outcome(plan, lambda row: RowResult(finite=row.request is not first)))
        scheduler.check()
        assert [delta.request_id for delta in deltas] == ["r0"]
        assert deltas[0].finish_reason is FinishReason.ERROR
        assert deltas[0].error
        assert deltas[0].usage is not None
        assert first.phase is Phase.FINISHED
        assert second.phase is Phase.RUNNING
        scheduler.add(make_request("again", first.tokens, arrival=7))
        assert ("again", 0, 16) in step(scheduler)[0]

    def test_a_failed_step_ends_its_requests_and_no_others(self) -> None:
        scheduler = make_scheduler(max_running=2)
        for request in prompts(3, 20):
            scheduler.add(request)
        step(scheduler)
        plan = scheduler.schedule()
        assert plan is not None
        scheduler.abort("r1")
        deltas = scheduler.fail(plan, "the device is gone")
        scheduler.check()
        assert [(delta.request_id, delta.finish_reason, delta.error) for delta in deltas] == [
            ("r0", FinishReason.ERROR, "the device is gone")
        ]
        assert scheduler.stats().free_blocks == 64
        assert step(scheduler)[0] == [("r2", 0, 20)]


class TestForks:
    def family(self, choices: int, tokens: int = 40, params: SamplingParams = FOREVER) -> list[Request]:
        parent = make_request("0", range(tokens), arrival=0, seed=100, params=params)
        return [parent] + [
            make_request(str(n), range(tokens), arrival=n, seed=100 + n, fork_of=parent, params=params)
            for n in range(1, choices)
        ]

    def test_they_wait_for_the_prompt_and_compute_one_token_of_it(self) -> None:
        scheduler = make_scheduler(chunk_tokens=30)
        for request in self.family(3):
            scheduler.add(request)
        assert step(scheduler)[0] == [("0", 0, 30)]
        assert step(scheduler)[0] == [("0", 30, 10)]
        assert step(scheduler)[0] == [("0", 40, 1), ("1", 39, 1), ("2", 39, 1)]

    def test_a_copy_is_in_the_plan_of_the_row_that_needs_it(self) -> None:
        scheduler = make_scheduler()
        family = self.family(2)
        for request in family:
            scheduler.add(request)
        step(scheduler)
        plan = scheduler.schedule()
        assert plan is not None
        assert plan.copies == ((family[0].block_table[2], family[1].block_table[2]),)

    def test_their_answers_are_their_own(self) -> None:
        params = SamplingParams(max_tokens=30, ignore_eos=True)
        alone = {}
        for request in self.family(4, params=params):
            request.fork_of = None
            alone |= run_to_completion(make_scheduler(), FakeExecutor(64), [request])
        scheduler = make_scheduler()
        together = run_to_completion(scheduler, FakeExecutor(64), self.family(4, params=params))
        assert {name: ended.token_ids for name, ended in together.items()} == {
            name: ended.token_ids for name, ended in alone.items()
        }
        assert len({tuple(ended.token_ids) for ended in together.values()}) == 4
        usages = [ended.usage for ended in together.values()]
        assert [usage.cached_tokens for usage in usages if usage is not None] == [0, 39, 39, 39]
        assert scheduler.stats().scheduled_tokens_total == 40 + 3 + 4 * 29

    def test_those_behind_do_not_wait_with_them(self) -> None:
        scheduler = make_scheduler(chunk_tokens=16)
        for request in self.family(3):
            scheduler.add(request)
        scheduler.add(make_request("other", [1, 2, 3], arrival=9))
        assert step(scheduler)[0] == [("0", 0, 16), ("other", 0, 3)]

    @pytest.mark.parametrize("steps", [0, 1, 2])
    def test_without_the_parent_they_go_the_ordinary_way(self, steps: int) -> None:
        scheduler = make_scheduler(chunk_tokens=32)
        for request in self.family(2):
            scheduler.add(request)
        for _ in range(steps):
            step(scheduler)
        scheduler.abort("0")
        assert step(scheduler)[0] == [("1", 32 if steps else 0, 8 if steps else 32)]

    def test_a_parent_that_was_refused_is_not_waited_for(self) -> None:
        scheduler = make_scheduler(3)
        parent = make_request("parent", range(48))
        with pytest.raises(UnservableRequest):
            scheduler.add(parent)
        params = SamplingParams(max_tokens=0)
        scheduler.add(make_request("child", range(48), arrival=1, params=params, fork_of=parent))
        assert step(scheduler)[0] == [("child", 0, 48)]

    def test_a_preempted_fork_goes_the_ordinary_way(self) -> None:
        scheduler = make_scheduler()
        family = self.family(2)
        for request in family:
            scheduler.add(request)
        step(scheduler)
        step(scheduler)
        scheduler.preempt("1")
        assert family[1].fork_of is None
        assert step(scheduler)[0][1] == ("1", 32, 9)

    def test_a_preempted_parent_is_waited_for(self) -> None:
        scheduler = make_scheduler(chunk_tokens=20)
        for request in self.family(2):
            scheduler.add(request)
        step(scheduler)
        scheduler.preempt("0")
        assert [step(scheduler)[0] for _ in range(3)] == [[("0", 16, 20)], [("0", 36, 4)], [("0", 40, 1), ("1", 39, 1)]]

    def test_a_fork_comes_after_its_parent(self) -> None:
        parent = make_request("parent", [1], arrival=5)
        with pytest.raises(AssertionError):
            make_scheduler().add(make_request("child", [1], arrival=4, fork_of=parent))


class TestLogprobs:
    def test_the_prompts_come_once_on_the_first_delta_and_begin_with_none(self) -> None:
        scheduler = make_scheduler(chunk_tokens=16)
        params = SamplingParams(max_tokens=3, ignore_eos=True, prompt_logprobs=0, logprobs=0)
        request = make_request("r", range(40), params=params)
        scheduler.add(request)
        executor, deltas = FakeExecutor(64), []
        while (plan := scheduler.schedule()) is not None:
            deltas += scheduler.commit(plan, executor.execute(plan).result())
        assert [len(delta.prompt_logprobs) for delta in deltas] == [40, 0, 0]
        first, *others = deltas[0].prompt_logprobs
        assert first is None
        assert [entry.token_id for entry in others if entry is not None] == list(range(1, 40))
        assert [[entry.token_id for entry in delta.logprobs] for delta in deltas] == [
            list(delta.token_ids) for delta in deltas
        ]

    @pytest.mark.parametrize("prompt_tokens", [1, 16, 40])
    def test_a_prompt_without_an_answer(self, prompt_tokens: int) -> None:
        scheduler = make_scheduler(chunk_tokens=16)
        params = SamplingParams(max_tokens=0, prompt_logprobs=0)
        request = make_request("r", range(prompt_tokens), params=params)
        ended = run_to_completion(scheduler, FakeExecutor(64), [request])["r"]
        assert ended.finish_reason is FinishReason.LENGTH
        assert ended.token_ids == []
        assert len(ended.prompt_logprobs) == prompt_tokens
        assert ended.usage is not None
        assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (prompt_tokens, 0)

    @pytest.mark.parametrize("preempted_after", [1, 2, 3, 4])
    def test_preemption_neither_doubles_nor_loses_them(self, preempted_after: int) -> None:
        scheduler, executor = make_scheduler(chunk_tokens=16), FakeExecutor(64)
        params = SamplingParams(max_tokens=5, ignore_eos=True, prompt_logprobs=0)
        scheduler.add(make_request("r", range(40), params=params))
        given = Transcript()
        for _ in range(preempted_after):
            plan = scheduler.schedule()
            assert plan is not None
            for delta in scheduler.commit(plan, executor.execute(plan).result()):
                given.add(delta)
        scheduler.preempt("r")
        while (plan := scheduler.schedule()) is not None:
            for delta in scheduler.commit(plan, executor.execute(plan).result()):
                given.add(delta)
        assert [entry and entry.token_id for entry in given.prompt_logprobs] == [None, *range(1, 40)]
        assert len(given.token_ids) == 5

    def test_a_fork_for_prompt_logprobs_computes_its_prompt(self) -> None:
        params = SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=0)
        family = TestForks().family(2, params=params)
        ended = run_to_completion(make_scheduler(), FakeExecutor(64), family)
        assert len(ended["1"].prompt_logprobs) == 40


class TestStopTokens:
    def test_a_stop_token_is_counted_and_not_handed_out(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(make_request("r", [5, 6], params=SamplingParams(logprobs=0), eos_token_ids=(3,)))
        deltas = []
        for token in (9, 3):
            plan = scheduler.schedule()
            assert plan is not None
            drawn = RowResult(token, TokenLogprob(token, -1.0, ()))
            deltas += scheduler.commit(plan, StepResult((drawn,)))
        assert [delta.token_ids for delta in deltas] == [(9,), ()]
        assert [len(delta.logprobs) for delta in deltas] == [1, 0]
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert deltas[-1].stop_token == 3
        assert deltas[-1].usage is not None
        assert deltas[-1].usage.completion_tokens == 2
        assert not scheduler.has_work


class TestIsolation:
    def test_tenants_do_not_see_each_others_prefixes(self) -> None:
        scheduler, executor = make_scheduler(), FakeExecutor(64)
        cached = []
        for number, salt in enumerate((b"a", b"b", b"a", b"")):
            request = make_request(f"r{number}", range(40), arrival=number, salt=salt)
            ended = run_to_completion(scheduler, executor, [request])[request.id]
            assert ended.usage is not None
            cached.append(ended.usage.cached_tokens)
        assert cached == [0, 0, 32, 0]
