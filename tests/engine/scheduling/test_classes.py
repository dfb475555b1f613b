"""Service classes: reserves, who gives way to whom, shares of a step, and what is charged to which class."""

import pytest

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.errors import UnservableRequest
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD, Phase, Request, SamplingParams, ServiceClass
from engine.scheduling import RowResult, Scheduler, StepPlan, StepResult
from engine.scheduling.class_activity import ACTIVE_NS
from engine.scheduling.cost import CostCoefficients, StepCostModel
from engine.scheduling.step_limits import StepLimits
from engine.simulation import FakeExecutor, make_request, run_to_completion

FOREVER = SamplingParams(max_tokens=100_000, ignore_eos=True)
BATCH = ServiceClass("batch", priority=20)


def make_scheduler(
    num_blocks: int = 20,
    *,
    max_running: int = 10,
    step_tokens: int = 1000,
    chunk_tokens: int = 1000,
    classes: tuple[ServiceClass, ...] = (PREMIUM, STANDARD),
    tenant_preemptions: int = 32,
    preemption_window_steps: int = 1000,
    blocks_a_step: int = 1000,
) -> Scheduler:
    config = SchedulerConfig(
        max_running=max_running,
        step_tokens=step_tokens,
        chunk_tokens=chunk_tokens,
        classes=classes,
        tenant_preemptions=tenant_preemptions,
        preemption_window_steps=preemption_window_steps,
    )
    return Scheduler(config, KVCacheManager(BlockPool(num_blocks), blocks_a_step=blocks_a_step), 4096)


def request(
    arrival: int,
    tokens: int,
    service_class: ServiceClass = STANDARD,
    *,
    tenant: str = "",
    params: SamplingParams = FOREVER,
) -> Request:
    """Its prompt has nothing in common with another's; its name is its class's first letter and its arrival."""
    prompt = range(10_000 * arrival, 10_000 * arrival + tokens)
    name = f"{service_class.name[0]}{arrival}"
    return make_request(
        name, prompt, arrival=arrival, params=params, service_class=service_class, tenant=tenant, salt=tenant.encode()
    )


def step(scheduler: Scheduler, elapsed_ns: int = 0, budget: int | None = None, now_ns: int = 0) -> dict[str, int]:
    """Tokens of each row, by request."""
    plan = scheduler.schedule(now_ns, budget=budget)
    assert plan is not None
    commit(scheduler, plan, elapsed_ns)
    return {row.request.id: row.tokens for row in plan.rows}


def commit(scheduler: Scheduler, plan: StepPlan, elapsed_ns: int = 0) -> None:
    rows = tuple(RowResult(token=1 if row.samples else None) for row in plan.rows)
    scheduler.commit(plan, StepResult(rows), elapsed_ns=elapsed_ns)
    scheduler.check()


def settle(scheduler: Scheduler) -> None:
    """Some steps; in one of them there may be nothing to compute yet."""
    for _ in range(10):
        if (plan := scheduler.schedule(0)) is not None:
            commit(scheduler, plan)


def bound(scheduler: Scheduler, now_ns: int) -> tuple[int, int]:
    """The class below which prefill is bounded for a first token, and how much of it there may be."""
    limits = scheduler.step_limits(now_ns)
    return limits.rank, limits.prefill_tokens


def running(scheduler: Scheduler, now_ns: int = 0) -> list[str]:
    return sorted(step(scheduler, now_ns=now_ns))


class TestReserve:
    def test_a_lower_class_leaves_the_reserve_alone(self) -> None:
        """20 blocks, 6 of them premium's: six standard requests of two blocks, with growth, do not fit in 14."""
        scheduler = make_scheduler()
        for number in range(10):
            scheduler.add(request(number, 20))
        assert len(step(scheduler)) == 4
        assert scheduler.stats().free_blocks == 12

    def test_slots_follow_the_same_rule(self) -> None:
        scheduler = make_scheduler(200)
        scheduler.add(request(100, 4, PREMIUM))
        scheduler.abort("p100")
        for number in range(12):
            scheduler.add(request(number, 4))
        assert len(step(scheduler)) == 7
        for number in range(12, 16):
            scheduler.add(request(number, 4, PREMIUM))
        assert [name for name in running(scheduler) if name.startswith("p")] == ["p12", "p13", "p14", "p15"]

    def test_slots_are_not_kept_for_a_class_that_does_not_come(self) -> None:
        """When it comes, it gets its slots at once, and they are kept for it until it has been gone for a while."""
        scheduler = make_scheduler(200)
        for number in range(12):
            scheduler.add(request(number, 4))
        assert len(step(scheduler)) == 10
        for number in range(12, 14):
            scheduler.add(request(number, 4, PREMIUM), now_ns=1)
        assert running(scheduler, now_ns=1) == ["p12", "p13", *(f"s{number}" for number in range(8))]
        for number in range(4):
            scheduler.abort(f"s{number}")
        scheduler.abort("p12")
        assert len(running(scheduler, now_ns=2)) == 1 + 7
        assert len(running(scheduler, now_ns=1 + ACTIVE_NS)) == 1 + 8

    def test_what_premium_holds_of_its_reserve_is_not_kept_twice(self) -> None:
        scheduler = make_scheduler()
        scheduler.add(request(0, 6 * BLOCK_TOKENS - 1, PREMIUM))
        scheduler.add(request(1, 10 * BLOCK_TOKENS))
        assert running(scheduler) == ["p0", "s1"]

    def test_a_class_has_a_window_of_its_own(self) -> None:
        scheduler = make_scheduler()
        assert scheduler.window_tokens == scheduler.window_tokens_of("premium") == 320
        assert scheduler.window_tokens_of("standard") == 224
        with pytest.raises(UnservableRequest, match=r"can have 224 in class standard: .* 320 tokens, less 96 reserved"):
            scheduler.add(request(0, 224))
        scheduler.add(request(1, 223))
        scheduler.add(request(2, 319, PREMIUM))

    def test_the_longest_of_a_class_runs_to_its_end(self) -> None:
        scheduler = make_scheduler()
        ended = run_to_completion(scheduler, FakeExecutor(20), [request(0, 100), request(1, 100, PREMIUM)])
        lengths = [
            usage.prompt_tokens + usage.completion_tokens for usage in (e.usage for e in ended.values()) if usage
        ]
        assert sorted(lengths) == [224, 320]

    def test_an_unknown_class_is_refused(self) -> None:
        with pytest.raises(UnservableRequest, match="no service class 'batch'"):
            make_scheduler().add(request(0, 4, BATCH))

    def test_the_configured_class_of_that_name_counts(self) -> None:
        scheduler = make_scheduler()
        stranger = request(0, 4, ServiceClass("standard", priority=0))
        scheduler.add(stranger)
        assert (stranger.service_class, stranger.rank) == (STANDARD, 1)


class TestPreemptionForTheWaiting:
    def test_for_a_slot(self) -> None:
        """vLLM 40004: a waiting request of high priority never preempts at the limit of sequences."""
        free = ServiceClass("premium", priority=0)
        scheduler = make_scheduler(200, max_running=3, classes=(free, STANDARD))
        for number in range(3):
            scheduler.add(request(number, 20))
        step(scheduler)
        scheduler.add(request(3, 20, free))
        assert running(scheduler) == ["p3", "s0", "s1"]

    def test_as_many_as_it_takes_to_leave_a_reserve_above_that_is_wanted_again(self) -> None:
        """Batch has all four slots; with the first of premium two are premium's again, so standard takes two."""
        kept = ServiceClass("premium", priority=0, reserved_fraction=0.5)
        scheduler = make_scheduler(200, max_running=4, classes=(kept, STANDARD, BATCH))
        for number in range(4):
            scheduler.add(request(number, 20, BATCH))
        step(scheduler)
        scheduler.add(request(4, 20, kept))
        assert running(scheduler) == ["b0", "b1", "b2", "p4"]
        scheduler.add(request(5, 20))
        assert running(scheduler) == ["b0", "p4", "s5"]

    def test_nobody_gives_way_for_blocks_that_are_about_to_be_free(self) -> None:
        """One that has gone gives back two blocks a step."""
        free = ServiceClass("premium", priority=0)
        scheduler = make_scheduler(22, classes=(free, STANDARD), blocks_a_step=2)
        for number in range(2):
            scheduler.add(request(number, 10 * BLOCK_TOKENS - 10))
        settle(scheduler)
        scheduler.abort("s0")
        scheduler.add(request(2, 10 * BLOCK_TOKENS - 10, free))
        settle(scheduler)
        assert running(scheduler) == ["p2", "s1"]
        assert scheduler.stats().preemptions_total == 0

    def test_for_blocks_the_one_that_frees_most_goes(self) -> None:
        scheduler = make_scheduler()
        for number, tokens in enumerate((20, 70, 20)):
            scheduler.add(request(number, tokens))
        step(scheduler)
        scheduler.add(request(3, 11 * BLOCK_TOKENS, PREMIUM))
        scheduler.add(request(4, 3 * BLOCK_TOKENS, PREMIUM))
        assert running(scheduler) == ["p3", "p4", "s0", "s2"]

    def test_never_one_of_its_own_class_or_above(self) -> None:
        scheduler = make_scheduler(max_running=2)
        for number in range(2):
            scheduler.add(request(number, 20, PREMIUM))
        step(scheduler)
        scheduler.add(request(2, 20, PREMIUM))
        scheduler.add(request(3, 20))
        assert running(scheduler) == ["p0", "p1"]
        assert scheduler.stats().preemptions_total == 0

    def test_never_in_vain(self) -> None:
        """Premium's own hold the rest: no number of standard victims would make the room."""
        scheduler = make_scheduler()
        scheduler.add(request(0, 12 * BLOCK_TOKENS, PREMIUM))
        scheduler.add(request(1, 20))
        step(scheduler)
        scheduler.add(request(2, 9 * BLOCK_TOKENS, PREMIUM))
        assert running(scheduler) == ["p0", "s1"]

    def test_a_victim_keeps_place_and_tokens_and_comes_back(self) -> None:
        free = ServiceClass("premium", priority=0)
        scheduler = make_scheduler(200, max_running=1, classes=(free, STANDARD))
        victim = request(0, 20)
        scheduler.add(victim)
        for _ in range(3):
            step(scheduler)
        tokens = list(victim.tokens)
        scheduler.add(request(1, 4))
        scheduler.add(request(2, 4, free, params=SamplingParams(max_tokens=1)))
        assert running(scheduler) == ["p2"]
        assert (victim.phase, victim.arrival, victim.tokens) == (Phase.WAITING, 0, tokens)
        assert step(scheduler) == {"s0": len(tokens) - BLOCK_TOKENS}

    def test_the_often_preempted_and_the_oldest_go_last(self) -> None:
        free = ServiceClass("premium", priority=0)
        scheduler = make_scheduler(200, max_running=3, classes=(free, STANDARD))
        requests = [request(number, tokens) for number, tokens in enumerate((50, 40, 4))]
        for each in requests:
            scheduler.add(each)
        requests[1].preemptions = 3
        step(scheduler)
        gone = []
        for number in range(3, 6):
            scheduler.add(request(number, 4, free))
            step(scheduler)
            gone.append([each.id for each in requests if each.phase is Phase.WAITING])
        assert gone == [["s2"], ["s0", "s2"], ["s0", "s1", "s2"]]

    def test_growth_spares_the_often_preempted(self) -> None:
        scheduler = make_scheduler(8, classes=(STANDARD,))
        requests = [request(number, 15) for number in range(4)]
        for each in requests:
            scheduler.add(each)
        step(scheduler)
        requests[-1].preemptions = 3
        while scheduler.stats().preemptions_total == 0:
            step(scheduler)
        assert requests[-1].phase is Phase.RUNNING
        assert requests[-2].phase is Phase.WAITING

    def test_a_tenant_may_cause_so_many(self) -> None:
        """Fill-and-Squeeze: one that sends request after request to have others preempted comes to wait."""
        free = ServiceClass("premium", priority=0)
        scheduler = make_scheduler(
            200, max_running=6, classes=(free, STANDARD), tenant_preemptions=2, preemption_window_steps=20
        )
        for number in range(6):
            scheduler.add(request(number, 4))
        step(scheduler)
        for number in range(6, 10):
            scheduler.add(request(number, 4, free, tenant="squeezer"))
        assert len([name for name in running(scheduler) if name.startswith("p")]) == 2
        assert scheduler.stats().preemptions_total == 2
        caused = []
        for _ in range(22):
            step(scheduler)
            caused.append(scheduler.stats().preemptions_total)
        assert (caused[7], caused[-1]) == (2, 4)

    def test_two_victims_free_what_they_share(self) -> None:
        free = ServiceClass("premium", priority=0)
        scheduler = make_scheduler(8, classes=(free, STANDARD))
        parent = request(0, 60)
        child = make_request("child", parent.tokens, arrival=1, params=FOREVER, fork_of=parent)
        for each in (parent, child):
            scheduler.add(each)
        step(scheduler)
        assert running(scheduler) == ["child", "s0"]
        scheduler.add(request(2, 7 * BLOCK_TOKENS, free))
        assert running(scheduler) == ["p2"]


class TestStep:
    def test_premiums_prompt_takes_the_tokens_first(self) -> None:
        scheduler = make_scheduler(200, step_tokens=100, chunk_tokens=80)
        scheduler.add(request(0, 1000))
        assert step(scheduler) == {"s0": 80}
        scheduler.add(request(1, 150, PREMIUM))
        assert step(scheduler) == {"p1": 80, "s0": 11}  # a tenth of the step, and the one token of every request
        assert step(scheduler) == {"p1": 70, "s0": 11}

    def test_a_classs_share_of_a_step_is_bounded_while_one_above_runs(self) -> None:
        standard = ServiceClass("standard", priority=10, step_share=0.25)
        scheduler = make_scheduler(400, step_tokens=200, chunk_tokens=200, classes=(PREMIUM, standard))
        scheduler.add(request(0, 4000))
        assert step(scheduler) == {"s0": 200}
        scheduler.add(request(1, 10, PREMIUM, params=SamplingParams(max_tokens=2, ignore_eos=True)))
        assert step(scheduler) == {"p1": 10, "s0": 51}
        assert step(scheduler) == {"p1": 1, "s0": 51}
        assert step(scheduler) == {"s0": 200}

    @pytest.mark.parametrize(("budget", "tokens"), [(None, 100), (500, 100), (40, 40), (0, 1)])
    def test_the_caller_may_lower_a_steps_budget(self, budget: int | None, tokens: int) -> None:
        scheduler = make_scheduler(200, step_tokens=100)
        scheduler.add(request(0, 1000))
        assert step(scheduler, budget=budget) == {"s0": tokens}

    def test_a_guard_bounds_the_prefill_of_lower_classes_alone(self) -> None:
        scheduler = make_scheduler(400, step_tokens=200, chunk_tokens=200)
        scheduler.add(request(0, 1000))
        plan = scheduler.schedule(limits=StepLimits(0, 30))
        assert plan is not None
        assert [row.tokens for row in plan.rows] == [30]
        scheduler.fail(plan, "enough")
        scheduler.add(request(1, 150, PREMIUM))
        plan = scheduler.schedule(limits=StepLimits(0, 30))
        assert plan is not None
        assert [row.tokens for row in plan.rows] == [150]

    def test_a_step_takes_a_tenth_of_a_target_while_its_class_is_about_and_never_more_than_all(self) -> None:
        """A millisecond a token, half a second for premium's first."""
        cost = StepCostModel.from_coefficients(CostCoefficients(0, 1e6, 0, 0))
        config = SchedulerConfig(step_tokens=2000, chunk_tokens=2000)
        scheduler = Scheduler(config, KVCacheManager(BlockPool(400)), 4096, cost)
        assert bound(scheduler, 0) == (0, 500)
        scheduler.add(request(1, 10, PREMIUM), now_ns=5)
        assert bound(scheduler, 6) == (0, 50)
        assert bound(scheduler, 5 + ACTIVE_NS) == (0, 500)
        scheduler.abort("p1")
        scheduler.add(request(2, 1900), now_ns=5 + ACTIVE_NS)
        plan = scheduler.schedule(limits=scheduler.step_limits(now_ns=5 + ACTIVE_NS))
        assert plan.total_tokens == 500

    def test_steps_are_not_kept_short_for_a_class_without_a_target(self) -> None:
        scheduler = make_scheduler(classes=(ServiceClass("premium", priority=0), STANDARD))
        scheduler.add(request(1, 10, PREMIUM))
        rank, _ = bound(scheduler, 0)
        assert rank == scheduler.rank_of("standard"), "there is no class below the lowest"

    def test_a_running_request_gets_a_token_whatever_the_budget(self) -> None:
        scheduler = make_scheduler(200)
        for number in range(5):
            scheduler.add(request(number, 4))
        step(scheduler)
        assert step(scheduler, budget=1) == {f"s{number}": 1 for number in range(5)}


class TestTime:
    def test_it_is_divided_to_the_nanosecond(self) -> None:
        scheduler = make_scheduler(200)
        requests = [request(number, 7 + number, (PREMIUM, STANDARD)[number % 2]) for number in range(6)]
        for each in requests:
            scheduler.add(each)
        for elapsed_ns in (1_000_003, 17, 999):
            step(scheduler, elapsed_ns)
        assert sum(each.attributed_ns for each in scheduler.stats().classes) == 1_001_019
        assert sum(each.engine_ns for each in requests) == 1_001_019

    def test_waiting_is_counted_until_the_first_admission(self) -> None:
        scheduler = make_scheduler(max_running=1, classes=(STANDARD,))
        first, second = (request(number, 4, params=SamplingParams(max_tokens=1)) for number in range(2))
        for each in (first, second):
            scheduler.add(each, now_ns=1000)
        for now_ns in (1500, 4000):
            plan = scheduler.schedule(now_ns)
            assert plan is not None
            commit(scheduler, plan, 100)
        assert (first.usage.queue_ns, second.usage.queue_ns) == (500, 3000)
        assert first.usage.engine_ns == 100

    def test_work_repeated_is_charged_to_the_class_that_caused_it(self) -> None:
        free = ServiceClass("premium", priority=0)
        scheduler = make_scheduler(200, max_running=1, classes=(free, STANDARD))
        victim = request(0, 40)
        scheduler.add(victim)
        step(scheduler, 1000)
        scheduler.add(request(1, 4, free, params=SamplingParams(max_tokens=1)))
        step(scheduler, 50)
        step(scheduler, 700)  # 32 tokens come from the cache, 8 are computed again, one is new
        premium, standard = scheduler.stats().classes
        assert (premium.preemptions_caused, standard.preemptions_suffered) == (1, 1)
        assert (premium.recomputed_tokens, premium.recompute_ns) == (8, 700 * 8 // 9)
        assert (premium.attributed_ns, standard.attributed_ns) == (50 + 700 * 8 // 9, 1000 + 700 - 700 * 8 // 9)
        assert victim.engine_ns == standard.attributed_ns
        assert victim.recompute_ns == {"premium": premium.recompute_ns}
        assert victim.usage.recompute_ns == victim.recompute_ns


class TestStats:
    def test_the_queue_is_as_old_as_its_oldest(self) -> None:
        scheduler = make_scheduler(max_running=1, classes=(PREMIUM, STANDARD))
        for number, now_ns in enumerate((100, 300, 700)):
            scheduler.add(request(number, 4), now_ns)
        assert [each.queue_age_ns for each in scheduler.stats(1000).classes] == [0, 900]
        plan = scheduler.schedule(1000)
        assert plan is not None
        commit(scheduler, plan)
        assert [each.queue_age_ns for each in scheduler.stats(1000).classes] == [0, 700]

    def test_one_that_was_preempted_waits_since_then(self) -> None:
        scheduler = make_scheduler(max_running=1, classes=(ServiceClass("premium", priority=0), STANDARD))
        scheduler.add(request(0, 4), 100)
        commit(scheduler, scheduler.schedule(200))
        scheduler.add(request(1, 4, PREMIUM), 4000)
        commit(scheduler, scheduler.schedule(5000))
        assert [each.queue_age_ns for each in scheduler.stats(5300).classes] == [0, 300]

    def test_a_reserve_that_is_held_is_not_kept(self) -> None:
        scheduler = make_scheduler()
        assert [each.reserved_blocks for each in scheduler.stats().classes] == [6, 0]
        scheduler.add(request(0, 4 * BLOCK_TOKENS - 1, PREMIUM))
        step(scheduler)
        assert [each.reserved_blocks for each in scheduler.stats().classes] == [2, 0]

    def test_fairness_is_of_the_last_minute_and_counts_who_starves(self) -> None:
        scheduler = make_scheduler(200, max_running=2, classes=(STANDARD,))
        once = SamplingParams(max_tokens=1)
        for number, tenant in enumerate("ab"):
            scheduler.add(request(number, 10, tenant=tenant, params=once))
        commit(scheduler, scheduler.schedule(0))
        (served,) = scheduler.stats(0).classes
        assert (served.active_tenants, served.fairness) == (2, 1)
        for number in range(2, 5):
            scheduler.add(request(number, 10, tenant="abc"[number - 2]))
        (starving,) = scheduler.stats(0).classes
        assert (starving.active_tenants, starving.fairness) == (3, pytest.approx(2 / 3))
        for number in range(2, 5):
            scheduler.abort(f"s{number}")
        (forgotten,) = scheduler.stats(61 * 10**9).classes
        assert (forgotten.active_tenants, forgotten.fairness) == (0, 1)

    def test_fairness_is_of_a_class(self) -> None:
        scheduler = make_scheduler(200)
        scheduler.add(request(0, 40, PREMIUM, tenant="a"))
        scheduler.add(request(1, 4, tenant="b"))
        step(scheduler)
        assert [(each.active_tenants, each.fairness) for each in scheduler.stats().classes] == [(1, 1), (1, 1)]
