"""Acceptance of requests, ends from outside, and isolation of tenants."""

import pytest

from engine.config import BLOCK_TOKENS
from engine.errors import UnservableRequest
from engine.request import FinishReason, SamplingParams
from engine.simulation import FakeExecutor, make_request, run_to_completion
from tests.engine.scheduling.support import FOREVER, make_scheduler, outcome, prompts, step


class TestLimits:
    @pytest.mark.parametrize("max_tokens", [1, 100, None])
    @pytest.mark.parametrize(("prompt_tokens", "servable"), [(30, True), (31, True), (32, False), (33, False)])
    def test_a_prompt_as_large_as_the_pool(self, prompt_tokens: int, servable: bool, max_tokens: int | None) -> None:
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


class TestIsolation:
    def test_tenants_do_not_see_each_others_prefixes(self) -> None:
        scheduler, executor = make_scheduler(), FakeExecutor(64)
        cached = []
        for number, salt in enumerate((b"a", b"b", b"a", b"")):
            request = make_request(f"r{number}", range(40), arrival=number, salt=salt)
            ended = run_to_completion(scheduler, executor, [request])[request.id]
            cached.append(ended.usage.cached_tokens)
        assert cached == [0, 0, 32, 0]
