"""Results of a step: tokens, log-probabilities, ends and failures."""

import pytest

from engine.request import FinishReason, Phase, SamplingParams, TokenLogprob
from engine.scheduling import RowResult, StepResult
from engine.simulation import FakeExecutor, Transcript, make_request, run_to_completion
from tests.engine.scheduling.support import family, make_scheduler, outcome, prompts, step


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
        assert (ended.token_ids, len(ended.prompt_logprobs)) == ([], prompt_tokens)
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
        ended = run_to_completion(make_scheduler(), FakeExecutor(64), family(2, params=params))
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
        assert deltas[-1].usage.completion_tokens == 2
        assert not scheduler.has_work
