"""A step hangs, the device is slow for a while, the clock jumps or stands still: what the scheduler believes then."""

from dataclasses import dataclass
from random import Random

import pytest

from engine.config import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import SamplingParams, ServiceClass
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.scheduling.cost import SLOW_STREAK, CostCoefficients, StepWork, row_work, total
from engine.scheduling.wait import predict_first_token_ns
from engine.simulation import make_request
from engine.simulation.device import SLOW_FACTOR, Device
from engine.simulation.traffic import Fault, FaultKind

PREMIUM = ServiceClass("premium", priority=0, reserved_fraction=0.3, ttft_target_ms=60)
STANDARD = ServiceClass("standard", priority=10, step_share=0.5)
MINUTE_NS = 60 * 10**9
LEARNT = 300
"""Number of steps after which the scheduler knows its device."""
PROMPT_TOKENS = 200


@dataclass(frozen=True)
class Belief:
    """The scheduler's estimates for a step of a fixed mix of work, and the limits that follow from them."""

    step_ns: int
    prefill_tokens: int
    wait_ns: int
    coefficients: CostCoefficients


STEP_TOKENS = 2000
WORK = StepWork(tokens=100, context_tokens=2000, prefill_pairs=8000, rows=8)


class Machine:
    """A scheduler on a simulated device, with a new request whenever few are left, so that the load stays the same."""

    def __init__(self) -> None:
        config = SchedulerConfig(max_running=8, step_tokens=STEP_TOKENS, chunk_tokens=500, classes=(PREMIUM, STANDARD))
        self.scheduler = Scheduler(config, KVCacheManager(BlockPool(500)), 2000)
        self.device = Device(seed=1, speed=1.0)
        self.now_ns = 0
        self._rng = Random(2)
        self._requests = 0
        self._idle = self.scheduler.snapshot()

    def step(self) -> Belief:
        while self.scheduler.stats().running + self.scheduler.stats().waiting < 6:
            self.arrive(self._rng.choice((PREMIUM, STANDARD)))
        plan = self.scheduler.schedule(self.now_ns, limits=self.scheduler.step_limits(self.now_ns))
        assert plan is not None
        time = self.device.run(total(row_work(row.start, row.tokens) for row in plan.rows))
        self.now_ns += time.elapsed_ns
        results = tuple(RowResult(token=1 if row.samples else None) for row in plan.rows)
        self.scheduler.commit(plan, StepResult(results), elapsed_ns=time.elapsed_ns)
        self.scheduler.check()
        return self.belief()

    def belief(self) -> Belief:
        cost, limits = self.scheduler.cost_model, self.scheduler.step_limits(self.now_ns)
        return Belief(
            step_ns=cost.predict_ns(WORK),
            prefill_tokens=limits.prefill_tokens,
            wait_ns=predict_first_token_ns(self._idle, 1, PROMPT_TOKENS, cost),
            coefficients=cost.coefficients,
        )

    def strike(self, kind: FaultKind, *, ns: int = 0, steps: int = 0) -> None:
        self.device.apply(Fault(at_ns=0, kind=kind, ns=ns, steps=steps))

    def arrive(self, service_class: ServiceClass) -> None:
        tokens = [self._rng.randrange(1000) for _ in range(self._rng.randint(20, PROMPT_TOKENS))]
        params = SamplingParams(max_tokens=self._rng.randint(5, 40), ignore_eos=True)
        self._requests += 1
        request = make_request(
            f"r{self._requests}", tokens, params=params, arrival=self._requests, service_class=service_class
        )
        self.scheduler.add(request, self.now_ns)


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    for _ in range(LEARNT):
        machine.step()
    assert machine.belief().step_ns == pytest.approx(machine.device.usual_ns(WORK), rel=0.1)
    return machine


@pytest.mark.parametrize("hang_ns", [10**9, MINUTE_NS // 2, 10 * MINUTE_NS])
def test_a_hung_step_changes_no_belief(machine: Machine, hang_ns: int) -> None:
    """A step that takes a thousand times its time is an accident: predictions and the guard are as before, at once.

    After more than a minute no request remains that such short steps protect, until the next one arrives.
    """
    before = machine.belief()
    machine.strike(FaultKind.HANG, ns=hang_ns)
    for _ in range(20):
        after = machine.step()
        assert after.step_ns == pytest.approx(before.step_ns, rel=0.15)
        assert after.wait_ns == pytest.approx(before.wait_ns, rel=0.15)
        assert after.prefill_tokens in (STEP_TOKENS, pytest.approx(before.prefill_tokens, rel=0.25))


def test_a_hung_step_is_charged_in_full(machine: Machine) -> None:
    def charged_ns() -> int:
        return sum(each.attributed_ns for each in machine.scheduler.stats().classes)

    before, now_ns = charged_ns(), machine.now_ns
    machine.strike(FaultKind.HANG, ns=MINUTE_NS)
    machine.step()
    assert charged_ns() - before == machine.now_ns - now_ns > MINUTE_NS


def test_a_hang_in_the_first_step_of_all_is_overcome() -> None:
    """There is nothing to compare it with, so it is believed; a streak of usual steps, and it is not."""
    machine = Machine()
    machine.strike(FaultKind.HANG, ns=MINUTE_NS)
    assert machine.step().step_ns > 100 * machine.device.usual_ns(WORK)
    for _ in range(LEARNT):
        after = machine.step()
    assert after.step_ns == pytest.approx(machine.device.usual_ns(WORK), rel=0.25)


def test_a_slow_device_is_believed_in_a_streak_and_forgiven_as_fast(machine: Machine) -> None:
    """The guard follows: it lets less prefill into a slow step, and as much as before when that is over."""
    before = machine.belief()
    machine.strike(FaultKind.SLOW, steps=3 * SLOW_STREAK)
    for _ in range(3 * SLOW_STREAK):
        slow = machine.step()
    assert slow.step_ns == pytest.approx(SLOW_FACTOR * before.step_ns, rel=0.35)
    assert slow.prefill_tokens < before.prefill_tokens / 2
    for _ in range(3 * SLOW_STREAK):
        after = machine.step()
    assert after.step_ns == pytest.approx(before.step_ns, rel=0.25)
    assert after.prefill_tokens == pytest.approx(before.prefill_tokens, rel=0.25)


def test_a_clock_that_stands_still_teaches_nothing(machine: Machine) -> None:
    before = machine.belief()
    machine.strike(FaultKind.STILL, steps=20)
    for _ in range(20):
        assert machine.step().coefficients == before.coefficients


def test_a_clock_that_jumps_loosens_the_guard_and_an_arrival_tightens_it(machine: Machine) -> None:
    before = machine.belief()
    machine.now_ns += 2 * MINUTE_NS
    assert machine.belief().prefill_tokens > before.prefill_tokens
    machine.arrive(PREMIUM)
    assert machine.belief() == before
