"""How long steps are planned to take: for the watchdog, on machines of any speed, and for the time between tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import LONGEST_STEP_NS, STEP_TIMEOUT_SECONDS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD, Request, SamplingParams, ServiceClass
from engine.scheduling import RowResult, Scheduler, StepPlan, StepResult
from engine.scheduling.allowance import KEPT_THROUGHPUT, MIN_CHUNK_TOKENS
from engine.scheduling.cost import CostCoefficients, StepCostModel, StepWork, step_work
from engine.scheduling.wait import predict_first_token_ns
from engine.simulation import make_request

TIMEOUT_NS = int(1e9 * STEP_TIMEOUT_SECONDS)
ONE = ServiceClass("one", priority=0)
SMALL_MODEL_ON_A_CPU = CostCoefficients(6e6, 1.36e6, 1_000, 10)
"""5.9 ms between tokens, 700 ms for a step with 512 tokens of prefill."""
SLOW = CostCoefficients(0.3e9, 0.15e9, 0, 0)


slow_machines = st.builds(
    lambda step_ns, token_ns, context, pairs: CostCoefficients(step_ns, token_ns, context * token_ns, pairs * token_ns),
    st.floats(1e5, 1e10),
    st.floats(1e3, 5e8),
    st.floats(0, 0.01),
    st.floats(0, 0.01),
)
"""Attention to a hundred tokens of context takes at most as long as a token's other work."""


@dataclass
class Machine:
    """A scheduler on a device that takes what `truth` says, in virtual time."""

    truth: CostCoefficients
    scheduler: Scheduler
    now_ns: int = 1
    requests: int = 0
    took_ns: list[int] = field(default_factory=list)
    planned: list[StepPlan] = field(default_factory=list)

    def add(self, prompt: Sequence[int] | int, answer: int, service_class: ServiceClass) -> Request:
        self.requests += 1
        tokens = [self.requests * 7919 + each for each in range(prompt)] if isinstance(prompt, int) else prompt
        request = make_request(
            f"r{self.requests}",
            tokens,
            arrival=self.requests,
            params=SamplingParams(max_tokens=answer, ignore_eos=True),
            service_class=service_class,
        )
        self.scheduler.add(request, self.now_ns)
        return request

    def step(self) -> int:
        """Predicted time of the step, in ns; 0 without a step, as a long table is built in parts."""
        plan = self.scheduler.schedule(self.now_ns, limits=self.scheduler.step_limits(self.now_ns))
        if plan is None:
            return 0
        work = work_of(plan)
        predicted_ns, elapsed_ns = self.scheduler.cost_model.predict_ns(work), int(self.truth.predict_ns(work))
        self.now_ns += elapsed_ns
        self.took_ns.append(elapsed_ns)
        self.planned.append(plan)
        results = tuple(RowResult(token=7 if row.samples else None) for row in plan.rows)
        self.scheduler.commit(plan, StepResult(results), elapsed_ns=elapsed_ns)
        return predicted_ns

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()


def work_of(plan: StepPlan) -> StepWork:
    return step_work([row.start for row in plan.rows], [row.tokens for row in plan.rows])


def machine(
    truth: CostCoefficients,
    classes: tuple[ServiceClass, ...] = (PREMIUM, STANDARD),
    *,
    known: bool = False,
    longest_step_ns: int = LONGEST_STEP_NS,
) -> Machine:
    """`known`: the scheduler knows the device's speed from the first."""
    cost_model = StepCostModel.from_coefficients(truth) if known else None
    scheduler = Scheduler(
        SchedulerConfig(classes=classes),
        KVCacheManager(BlockPool(4000)),
        32_768,
        cost_model,
        longest_step_ns=longest_step_ns,
    )
    return Machine(truth, scheduler)


def prefill_of(plan: StepPlan) -> int:
    """Tokens beyond one a row."""
    return sum(row.tokens - 1 for row in plan.rows)


class TestWatchdog:
    @pytest.mark.parametrize(("classes", "of"), [((PREMIUM, STANDARD), PREMIUM), ((ONE,), ONE)])
    @pytest.mark.parametrize("short_before", [0, 12])
    def test_a_long_prompt_on_a_slow_device_is_no_hang(
        self, classes: tuple[ServiceClass, ...], of: ServiceClass, short_before: int
    ) -> None:
        """0.15 s a token: 512 of them would take 77 s, of the 60 that a step may."""
        slow = machine(SLOW, classes)
        for number in range(short_before):
            slow.add(20 + number, 3, classes[-1])
            slow.run()
        steps = len(slow.took_ns)
        slow.add(4000, 3, of)
        slow.run()
        assert max(slow.took_ns) < TIMEOUT_NS
        assert max(slow.took_ns) < 2 * LONGEST_STEP_NS
        assert len(slow.took_ns) - steps < 60, "a step of a quarter of a minute has 98 tokens"

    def test_an_unknown_machine_begins_small_and_doubles(self) -> None:
        unknown = machine(CostCoefficients(4e6, 25e3, 30, 1), (ONE,))
        unknown.add(4000, 1, ONE)
        unknown.run()
        chunks = [plan.total_tokens for plan in unknown.planned]
        assert chunks[0] == MIN_CHUNK_TOKENS
        assert all(after <= 2 * before for before, after in pairwise(chunks))
        assert chunks[9] == 512, "ten steps are enough"

    def test_a_long_cached_prompt_is_unknown_too(self) -> None:
        """The first chunk behind 16,000 cached tokens has a hundred times the pairs of any before it."""
        truth = CostCoefficients(4e6, 25e3, 30, 50e3)
        seen = machine(truth, (ONE,))
        talk = list(range(16_000))
        seen.scheduler.cost_model.observe(StepWork(512, 512, 512 * 256, 1), 7_000_000_000)
        seen.add(talk, 1, ONE)
        while seen.scheduler.has_work:
            if (plan := seen.scheduler.schedule()) is not None:
                results = tuple(RowResult(token=7 if row.samples else None) for row in plan.rows)
                seen.scheduler.commit(plan, StepResult(results))
        seen.add([*talk, *range(40_000, 42_000)], 1, ONE)
        seen.run()
        assert seen.planned[0].rows[0].start >= 15_000
        assert max(seen.took_ns) < TIMEOUT_NS

    @settings(max_examples=60, deadline=None)
    @given(
        truth=slow_machines,
        requests=st.lists(
            st.tuples(st.integers(1, 3000), st.integers(1, 8), st.sampled_from((PREMIUM, STANDARD))),
            min_size=1,
            max_size=5,
        ),
        known=st.booleans(),
        timeout_ns=st.sampled_from((10**9, TIMEOUT_NS)),
    )
    def test_no_step_of_more_than_a_small_chunk_is_predicted_to_take_a_quarter_of_the_timeout(
        self, truth: CostCoefficients, requests: list[tuple[int, int, ServiceClass]], known: bool, timeout_ns: int
    ) -> None:
        slow = machine(truth, known=known, longest_step_ns=timeout_ns // 4)
        for prompt, answer, service_class in requests:
            slow.add(prompt, answer, service_class)
            for _ in range(40):
                if not slow.scheduler.has_work:
                    break
                running = [request.scheduled for request in slow.scheduler.running]
                predicted_ns, plan = slow.step(), slow.planned[-1]
                if not predicted_ns or plan.total_tokens - len(running) <= MIN_CHUNK_TOKENS:
                    continue
                assert predicted_ns <= timeout_ns // 4 + 1
                least = step_work([*running, 0], [*[1] * len(running), MIN_CHUNK_TOKENS])
                if truth.predict_ns(least) <= timeout_ns // 4:
                    assert slow.took_ns[-1] <= timeout_ns, "what was not known of the machine has made a hang"


class TestTimeBetweenTokens:
    def beside(self, itl_target_ms: int | None, truth: CostCoefficients = SMALL_MODEL_ON_A_CPU) -> Machine:
        """Eight answers of a class with a target are under way, and a prompt of 4,000 tokens of another comes."""
        talkers = ServiceClass("talkers", priority=0, itl_target_ms=itl_target_ms)
        served = machine(truth, (talkers, ServiceClass("bulk", priority=10)), known=True)
        for _ in range(8):
            served.add(20, 2000, talkers)
        served.step()
        served.step()
        served.add(4000, 1, ServiceClass("bulk", priority=10))
        return served

    def steps_with_prefill(self, served: Machine) -> list[StepPlan]:
        while prefill_of((served.step(), served.planned[-1])[1]):
            pass
        plans = served.planned[2:-1]
        assert sum(map(prefill_of, plans)) + len(plans) >= 4000
        return plans

    @pytest.mark.parametrize("target_ms", [200, 300])
    def test_no_step_beside_it_takes_longer_than_the_target(self, target_ms: int) -> None:
        served = self.beside(target_ms)
        plans = self.steps_with_prefill(served)
        assert max(served.took_ns[2:]) <= target_ms * 10**6
        assert min(map(prefill_of, plans[:-1])) > MIN_CHUNK_TOKENS
        assert served.scheduler.stats().classes[0].itl_limited_steps >= len(plans) - 1

    def test_without_a_target_a_step_is_full(self) -> None:
        served = self.beside(None)
        assert max(map(prefill_of, self.steps_with_prefill(served))) > 480
        assert served.scheduler.stats().classes[0].itl_limited_steps == 0

    @pytest.mark.parametrize("target_ms", [1, 50, 150])
    @pytest.mark.parametrize(
        "truth",
        [SMALL_MODEL_ON_A_CPU, CostCoefficients(13e6, 2.7e6, 3_000, 50), CostCoefficients(4e6, 25e3, 34, 1), SLOW],
    )
    def test_prefill_keeps_nine_tenths_of_its_rate_and_no_step_is_longer_than_that_takes(
        self, truth: CostCoefficients, target_ms: int
    ) -> None:
        rates = []
        for target in (target_ms, None):
            served = self.beside(target, truth)
            plans = self.steps_with_prefill(served)
            rates.append(sum(map(prefill_of, plans[:-1])) / sum(served.took_ns[2:-2]))
            if target is not None:
                decode_ns = max(served.took_ns[0:2]) + truth.predict_ns(StepWork(0, 20_000, 0, 0))
                longest_ns = max(served.took_ns[2:])
                assert longest_ns <= max(target_ms * 1e6, decode_ns / (1 - KEPT_THROUGHPUT) + 2 * truth.token_ns)
        assert rates[0] >= (KEPT_THROUGHPUT - 0.005) * rates[1]

    def test_a_step_without_answers_under_way_is_full(self) -> None:
        talkers = ServiceClass("talkers", priority=0, itl_target_ms=50)
        served = machine(SMALL_MODEL_ON_A_CPU, (talkers,), known=True)
        served.add(4000, 2, talkers)
        served.run()
        assert [plan.total_tokens for plan in served.planned[:7]] == [512] * 7

    def test_prefill_makes_progress_where_decodes_alone_take_longer_than_the_target(self) -> None:
        served = self.beside(1, CostCoefficients(100e6, 1e3, 0, 0))
        assert min(map(prefill_of, self.steps_with_prefill(served)[:-1])) >= MIN_CHUNK_TOKENS - 1

    def test_waits_are_predicted_from_the_chunks_that_there_are(self) -> None:
        served, bulk = self.beside(200), ServiceClass("bulk", priority=10)
        for _ in range(5):
            served.add(8_000, 1, bulk)
        for _ in range(100):
            served.step()
        snapshot, cost_model = served.scheduler.snapshot(), served.scheduler.cost_model
        assert snapshot.capacities[1].prefill_step_tokens < 512
        predicted_ns = predict_first_token_ns(snapshot, 1, 3000, cost_model)
        asked_ns, last = served.now_ns, served.add(3000, 1, bulk)
        while not last.output_tokens:
            served.step()
        assert predicted_ns == pytest.approx(served.now_ns - asked_ns, rel=0.1)
