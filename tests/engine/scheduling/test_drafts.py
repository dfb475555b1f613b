"""Drafts in a plan, and what becomes of them when it lands."""

from collections.abc import Sequence
from typing import Any

import pytest

from engine.request import STANDARD, FinishReason, Request, SamplingParams, TokenDelta, TokenLogprob
from engine.scheduling import RowResult, Scheduler, StepPlan
from engine.scheduling.drafting import DraftCapacity
from engine.simulation import make_request
from tests.engine.scheduling.support import FOREVER, PREMIUM, make_scheduler, outcome, planned, prompts, step


def running(scheduler: Scheduler, tokens: int = 14, params: SamplingParams = FOREVER) -> Request:
    """A request that has drawn its first token."""
    (request,) = prompts(1, tokens, params)
    scheduler.add(request)
    step(scheduler)
    return request


def plan_with(scheduler: Scheduler, request: Request, drafts: Sequence[int]) -> StepPlan:
    plan = scheduler.schedule(draft=lambda _: {request: tuple(drafts)})
    assert plan is not None
    scheduler.check()
    return plan


def room_in(scheduler: Scheduler) -> DraftCapacity | None:
    """Capacity that the next step has left for drafts; None where no request can have any. The step itself has none."""
    capacities: list[DraftCapacity] = []

    def draft(room: DraftCapacity) -> dict[Request, tuple[int, ...]]:
        capacities.append(room)
        return {}

    plan = scheduler.schedule(draft=draft)
    assert plan.draft_tokens == 0
    return capacities[0] if capacities else None


def land(scheduler: Scheduler, plan: StepPlan, token: int, accepted: int, **fields: object) -> TokenDelta:
    """Take in a plan of one row with drafts."""
    result = RowResult(token, accepted=accepted, **fields)  # type: ignore[arg-type]
    (delta,) = scheduler.commit(plan, outcome(plan, lambda row: result), elapsed_ns=10)
    scheduler.check()
    return delta


def test_drafts_follow_the_last_token_of_a_request() -> None:
    scheduler = make_scheduler()
    request = running(scheduler)
    plan = plan_with(scheduler, request, (5, 6, 7))
    (row,) = plan.rows
    assert (row.start, row.tokens, row.samples, row.drafts) == (14, 4, True, (5, 6, 7))
    assert (plan.draft_tokens, plan.total_tokens) == (3, 4)
    assert request.tokens == [*range(14), 1]
    assert len(request.block_table) == 2


def test_what_was_right_is_appended_and_the_rest_forgotten() -> None:
    scheduler = make_scheduler()
    request = running(scheduler)
    delta = land(scheduler, plan_with(scheduler, request, (5, 6, 7)), token=9, accepted=1)
    assert delta.token_ids == (5, 9)
    assert request.tokens[14:] == [1, 5, 9]
    assert (request.computed, request.scheduled) == (16, 16)
    assert (request.usage.draft_tokens, request.usage.accepted_draft_tokens) == (3, 1)
    assert step(scheduler)[0] == [("r0", 16, 1)]


@pytest.mark.parametrize("accepted", [0, 3])
def test_all_or_none_of_them_may_be_right(accepted: int) -> None:
    scheduler = make_scheduler()
    request = running(scheduler)
    delta = land(scheduler, plan_with(scheduler, request, (5, 6, 7)), token=9, accepted=accepted)
    assert delta.token_ids == (*(5, 6, 7)[:accepted], 9)
    assert len(request.block_table) == (2 if accepted else 1)


def test_blocks_grown_for_rejected_drafts_are_free_again() -> None:
    scheduler = make_scheduler()
    request = running(scheduler)
    free = scheduler.stats().free_blocks
    plan = plan_with(scheduler, request, range(40))
    assert scheduler.stats().free_blocks == free - 3
    land(scheduler, plan, token=9, accepted=0)
    assert scheduler.stats().free_blocks == free


def test_only_blocks_of_final_tokens_can_be_found() -> None:
    scheduler = make_scheduler()
    request = running(scheduler, tokens=16)
    land(scheduler, plan_with(scheduler, request, range(30, 60)), token=9, accepted=20)
    assert request.computed == 16 + 21
    again = make_request("again", [*request.tokens[:-1], *range(50, 60)], arrival=5)
    scheduler.add(again)
    step(scheduler)
    assert again.cached_tokens == 32


@pytest.mark.parametrize(("max_tokens", "most"), [(2, 0), (3, 1), (5, 3), (100, 40)])
def test_drafts_never_go_past_the_length(max_tokens: int, most: int) -> None:
    scheduler = make_scheduler()
    request = running(scheduler, params=SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    assert plan_with(scheduler, request, range(40)).draft_tokens == most


@pytest.mark.parametrize(("max_tokens", "most"), [(3, 1), (5, 3), (100, 48)])
def test_as_many_are_useful_as_there_is_length_and_room_in_a_row(max_tokens: int, most: int) -> None:
    scheduler = make_scheduler(chunk_tokens=49)
    request = running(scheduler, params=SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    room = room_in(scheduler)
    assert room.useful == {request: most}


def test_there_is_room_for_what_prefill_leaves() -> None:
    scheduler = make_scheduler(step_tokens=40)
    request = running(scheduler)
    scheduler.add(make_request("late", range(22), arrival=3))
    room = room_in(scheduler)
    assert (set(room.useful), room.tokens) == ({request}, 40 - 1 - 22)


def test_requests_share_the_room_evenly() -> None:
    high, low, lowest = prompts(3, 4)
    low.rank = lowest.rank = 1
    room = DraftCapacity({high: 9, low: 9, lowest: 2}, 20, (20, 8))
    assert room.shares([high, low, lowest]) == [6, 4, 2]
    assert room.shares([]) == []
    assert DraftCapacity({high: 9, low: 9, lowest: 9}, 2, (9, 9)).shares([high, low, lowest]) == [0, 0, 0]
    left = room.without({low: (1, 2, 3, 4, 5)})
    assert (left.tokens, left.rank_tokens, set(left.useful)) == (15, [20, 3], {high, lowest})


def test_drafts_never_go_past_the_window() -> None:
    scheduler = make_scheduler(max_model_len=18)
    request = running(scheduler)
    plan = plan_with(scheduler, request, range(40))
    assert plan.draft_tokens == 2
    delta = land(scheduler, plan, token=9, accepted=2)
    assert delta.finish_reason is FinishReason.LENGTH
    assert len(request.tokens) == 18


def test_a_stop_amid_accepted_drafts_ends_the_request_there() -> None:
    scheduler = make_scheduler()
    params = SamplingParams(max_tokens=50, stop_token_ids=(6,), logprobs=0)
    request = running(scheduler, params=params)
    entries = tuple(TokenLogprob(token, -1.0, ()) for token in (5, 6, 7, 9))
    plan = plan_with(scheduler, request, (5, 6, 7))
    delta = land(scheduler, plan, token=9, accepted=3, logprob=entries[3], draft_logprobs=entries[:3])
    assert (delta.finish_reason, delta.stop_token) == (FinishReason.STOP, 6)
    assert delta.token_ids == (5,)
    assert delta.logprobs == entries[:1]
    assert delta.usage.completion_tokens == 3
    assert (delta.usage.draft_tokens, delta.usage.accepted_draft_tokens) == (3, 2)
    assert scheduler.stats().free_blocks == 64


def test_log_probabilities_come_with_their_tokens() -> None:
    scheduler = make_scheduler()
    request = running(scheduler, params=SamplingParams(max_tokens=50, ignore_eos=True, logprobs=0))
    entries = tuple(TokenLogprob(token, -1.0, ()) for token in (5, 9))
    plan = plan_with(scheduler, request, (5, 6))
    delta = land(scheduler, plan, token=9, accepted=1, logprob=entries[1], draft_logprobs=entries[:1])
    assert delta.logprobs == entries


class TestRoom:
    def test_prefill_goes_before_drafts(self) -> None:
        scheduler = make_scheduler(step_tokens=32)
        request = running(scheduler)
        scheduler.add(make_request("long", range(500, 600), arrival=1))
        plan = plan_with(scheduler, request, (5, 6, 7))
        assert planned(plan) == [("r0", 14, 1), ("long", 0, 31)]

    def test_drafts_have_what_prefill_leaves(self) -> None:
        scheduler = make_scheduler(step_tokens=32)
        request = running(scheduler)
        scheduler.add(make_request("short", range(500, 529), arrival=1))
        plan = plan_with(scheduler, request, (5, 6, 7))
        assert planned(plan) == [("r0", 14, 3), ("short", 0, 29)]
        assert plan.rows[0].drafts == (5, 6)

    def test_they_are_prefill_to_a_class_above(self) -> None:
        """Requests of that class wait for the end of the step, so `step_share` of it is reserved for them."""
        scheduler = make_scheduler(step_tokens=40)
        first, second = prompts(2, 14)
        first.service_class = PREMIUM
        for request in (first, second):
            scheduler.add(request)
        while not second.output_tokens:
            step(scheduler)
        share = int(STANDARD.step_share * 40)
        plan = scheduler.schedule(draft=lambda _: {first: tuple(range(10)), second: tuple(range(10))})
        assert plan is not None
        assert [len(row.drafts) for row in plan.rows] == [10, share]

    def test_without_a_block_to_be_had_they_end_with_the_last(self) -> None:
        scheduler = make_scheduler(4)
        requests = prompts(2, 13)
        for request in requests:
            scheduler.add(request)
        step(scheduler)
        plan = scheduler.schedule(draft=lambda _: dict.fromkeys(requests, tuple(range(40))))
        assert planned(plan) == [("r0", 13, 3), ("r1", 13, 3)]
        assert scheduler.stats().preemptions_total == 0

    def test_nobody_has_drafts_before_an_answer_has_begun(self) -> None:
        scheduler = make_scheduler(chunk_tokens=7)
        (request,) = prompts(1, 15)
        scheduler.add(request)
        for expected in ((0, 7), (7, 7), (14, 1)):
            plan = plan_with(scheduler, request, (5, 6))
            assert planned(plan) == [("r0", *expected)]
            scheduler.commit(plan, outcome(plan))


class TestInFlight:
    def test_a_row_follows_drafts_as_if_all_were_accepted(self) -> None:
        scheduler = make_scheduler()
        scheduler.async_depth = 1
        request = running(scheduler)
        plan = plan_with(scheduler, request, range(40))
        assert planned(plan) == [("r0", 14, 41)]
        ahead = plan_with(scheduler, request, (5, 6))
        assert planned(ahead) == [("r0", 55, 1)]
        assert (request.computed, request.scheduled, len(request.block_table)) == (14, 56, 4)
        land(scheduler, plan, token=9, accepted=1)
        assert (request.computed, request.scheduled, len(request.block_table)) == (16, 17, 2)
        third = plan_with(scheduler, request, (5, 6))
        assert planned(third) == [("r0", 17, 1)]
        for each, token in ((ahead, 11), (third, 12)):
            scheduler.commit(each, outcome(each, lambda row, token=token: RowResult(token)))
            scheduler.check()
        assert request.tokens[14:] == [1, 0, 9, 11, 12]
        assert request.usage.draft_tokens == 40

    def test_a_row_that_follows_drafts_is_dropped_where_they_end_the_request(self) -> None:
        scheduler = make_scheduler()
        scheduler.async_depth = 1
        request = running(scheduler, params=SamplingParams(stop_token_ids=(6,)))
        plan = plan_with(scheduler, request, (5, 6, 7))
        ahead = plan_with(scheduler, request, ())
        delta = land(scheduler, plan, token=9, accepted=3)
        assert (delta.token_ids, delta.stop_token) == ((5,), 6)
        assert scheduler.commit(ahead, outcome(ahead)) == []
        scheduler.check()

    def test_a_step_without_room_takes_the_row_that_follows_with_it(self) -> None:
        scheduler = make_scheduler()
        scheduler.async_depth = 1
        request = running(scheduler)
        plan = plan_with(scheduler, request, (5, 6, 7))
        ahead = plan_with(scheduler, request, ())
        assert scheduler.give_back(plan, "no room") == []
        assert scheduler.commit(ahead, outcome(ahead)) == []
        scheduler.check()
        assert (request.computed, request.scheduled, request.tokens[14:]) == (14, 14, [1])

    @pytest.mark.parametrize(
        "changes", [{"presence_penalty": 0.1}, {"repetition_penalty": 1.1}, {"min_tokens": 3}], ids=str
    )
    def test_nothing_is_planned_on_drafts_if_the_tokens_between_have_to_be_known(self, changes: dict[str, Any]) -> None:
        scheduler = make_scheduler()
        scheduler.async_depth = 1
        request = running(scheduler, params=SamplingParams(**changes))
        plan = plan_with(scheduler, request, (5, 6))
        scheduler.add(make_request("late", range(20), arrival=3))
        assert scheduler.schedule() is None
        scheduler.commit(plan, outcome(plan, lambda row: RowResult(9, accepted=1)))
        assert step(scheduler)[0] == [("r0", 16, 1), ("late", 0, 20)]

    def test_who_has_a_token_in_flight_has_no_drafts(self) -> None:
        scheduler = make_scheduler()
        scheduler.async_depth = 1
        running(scheduler)
        assert scheduler.schedule() is not None
        assert room_in(scheduler) is None

    @pytest.mark.parametrize("leave", ["abort", "preempt"])
    def test_drafts_of_who_has_left_are_dropped(self, leave: str) -> None:
        scheduler = make_scheduler()
        request = running(scheduler)
        plan = plan_with(scheduler, request, range(20))
        assert getattr(scheduler, leave)(request.id)
        assert scheduler.commit(plan, outcome(plan, lambda row: RowResult(9, accepted=20)), elapsed_ns=10) == []
        scheduler.check()
        assert (request.tokens[14:], request.usage.draft_tokens) == ([1], 0)

    def test_a_step_without_room_gives_their_blocks_back(self) -> None:
        scheduler = make_scheduler()
        request = running(scheduler)
        free = scheduler.stats().free_blocks
        plan = plan_with(scheduler, request, range(40))
        assert scheduler.give_back(plan, "no room") == []
        scheduler.check()
        assert scheduler.stats().free_blocks == free
        smaller = plan_with(scheduler, request, range(40))
        assert smaller.total_tokens <= plan.total_tokens // 2


def test_the_time_of_drafting_is_divided_to_the_nanosecond() -> None:
    scheduler = make_scheduler()
    requests = prompts(3, 14)
    for request in requests:
        scheduler.add(request)
    step(scheduler)
    scheduler.charge_drafting(requests, 100)
    assert sorted(request.engine_ns for request in requests) == [33, 33, 34]
    assert sum(each.attributed_ns for each in scheduler.stats().classes) == 100


def test_only_what_is_accepted_is_service() -> None:
    scheduler = make_scheduler()
    request = running(scheduler)
    before = scheduler.waiting_queues[request.rank].counter("")
    land(scheduler, plan_with(scheduler, request, range(10)), token=9, accepted=2)
    assert scheduler.waiting_queues[request.rank].counter("") - before == 2 * 3
