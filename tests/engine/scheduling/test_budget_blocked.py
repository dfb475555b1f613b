"""A head whose tenant has used up its preemptions: who may pass it, what is kept for it, and that it is served."""

import pytest

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import STANDARD, Phase, Request, SamplingParams, ServiceClass
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.simulation import make_request

PREMIUM = ServiceClass("premium", priority=0)
BATCH = ServiceClass("batch", priority=20)
CLASSES = (PREMIUM, STANDARD, BATCH)
"""Without reserves, so that what is free is for all."""


def make_scheduler(num_blocks: int = 200, *, max_running: int = 10, tenant_preemptions: int = 1) -> Scheduler:
    config = SchedulerConfig(
        max_running=max_running,
        step_tokens=1000,
        chunk_tokens=1000,
        classes=CLASSES,
        tenant_preemptions=tenant_preemptions,
        preemption_window_steps=1000,
    )
    return Scheduler(config, KVCacheManager(BlockPool(num_blocks)), 4096)


class Callers:
    """Adds requests, whose prompts have nothing in common, in the order in which they are made."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._arrivals = 0

    def add(self, name: str, service_class: ServiceClass, *, blocks: int = 1, answer: int = 1000) -> Request:
        """A request called `tenant` or `tenant.number`, whose prompt fills all but a token of its blocks."""
        self._arrivals += 1
        first = 10_000 * self._arrivals
        request = make_request(
            name,
            range(first, first + blocks * BLOCK_TOKENS - 1),
            arrival=self._arrivals,
            params=SamplingParams(max_tokens=answer, ignore_eos=True),
            service_class=service_class,
            tenant=name.split(".")[0],
        )
        self.scheduler.add(request)
        return request


def step(scheduler: Scheduler) -> list[str]:
    """Those that run."""
    plan = scheduler.schedule()
    assert plan is not None
    scheduler.check()
    scheduler.commit(plan, StepResult(tuple(RowResult(token=1 if row.samples else None) for row in plan.rows)))
    scheduler.check()
    return sorted(row.request.id for row in plan.rows)


def squeezed(max_running: int = 4, **config: int) -> tuple[Scheduler, Callers]:
    """All slots but one run victims. A squeezer has spent its whole budget to preempt the victim of that one."""
    scheduler = make_scheduler(max_running=max_running, **config)
    callers = Callers(scheduler)
    for number in range(max_running):
        callers.add(f"victim.{number}", BATCH)
    step(scheduler)
    callers.add("squeezer.0", PREMIUM)
    assert "squeezer.0" in step(scheduler)
    return scheduler, callers


@pytest.mark.parametrize(("name", "service_class"), [("other.0", PREMIUM), ("standard.0", STANDARD)])
def test_another_tenant_overtakes_by_preemptions_of_its_own(name: str, service_class: ServiceClass) -> None:
    """One of the same class, and one of a class below."""
    scheduler, callers = squeezed()
    callers.add("squeezer.1", PREMIUM)
    callers.add(name, service_class)
    assert step(scheduler) == sorted([name, "squeezer.0", "victim.0", "victim.1"])


def test_a_tenant_stays_in_its_own_order() -> None:
    scheduler, callers = squeezed()
    for number in (1, 2, 3):
        callers.add(f"squeezer.{number}", PREMIUM)
    assert step(scheduler) == ["squeezer.0", "victim.0", "victim.1", "victim.2"]
    scheduler.abort("victim.0")
    assert step(scheduler) == ["squeezer.0", "squeezer.1", "victim.1", "victim.2"]


def test_one_request_overtakes_per_step_and_tenants_take_turns() -> None:
    scheduler, callers = squeezed(max_running=6)
    for name in ("squeezer.1", "other.0", "other.1", "third.0"):
        callers.add(name, PREMIUM)
    came = [[name for name in step(scheduler) if "victim" not in name] for _ in range(3)]
    assert came == [["other.0", "squeezer.0"], *2 * [["other.0", "squeezer.0", "third.0"]]]


def test_free_slots_are_kept_for_the_overtaken_request() -> None:
    """A slot that is given back is the squeezer's, and another that comes with it, the next one's."""
    scheduler, callers = squeezed(tenant_preemptions=1)
    for name in ("squeezer.1", "other.0", "other.1"):
        callers.add(name, PREMIUM)
    step(scheduler)
    scheduler.abort("other.0")
    assert step(scheduler) == ["squeezer.0", "squeezer.1", "victim.0", "victim.1"]


def test_free_blocks_are_kept_for_the_overtaken_request() -> None:
    """`large` needs both victims, and may have one. `small` would fit what is free; it takes a victim all the same."""
    scheduler = make_scheduler(24, tenant_preemptions=1)
    callers = Callers(scheduler)
    for number in range(2):
        callers.add(f"victim.{number}", BATCH, blocks=8)
    step(scheduler)
    free_blocks = scheduler.stats().free_blocks
    large = callers.add("large", PREMIUM, blocks=20, answer=2)
    callers.add("small", PREMIUM, blocks=3)
    assert free_blocks == 8
    assert step(scheduler) == ["small", "victim.0"]
    assert scheduler.stats().free_blocks >= free_blocks
    scheduler.abort("small")
    assert step(scheduler) == ["large"]
    assert large.preemptions == 0


def test_a_request_that_is_overtaken_repeatedly_is_served() -> None:
    """No budget ever, and a new tenant each step that has one: they run out of victims, and then it is its turn."""
    scheduler = make_scheduler(40, max_running=8, tenant_preemptions=1)
    callers = Callers(scheduler)
    for number in range(8):
        callers.add(f"victim.{number}", BATCH, blocks=4)
    step(scheduler)
    blocked = callers.add("large", PREMIUM, blocks=30, answer=2)
    passed = 0
    for number in range(100):
        callers.add(f"tenant-{number}", PREMIUM, blocks=2, answer=20)
        running = step(scheduler)
        if blocked.phase is not Phase.WAITING:
            break
        passed = max(passed, sum(name.startswith("tenant") for name in running))
    assert "large" in running
    assert 0 < passed <= 8


@pytest.mark.parametrize("tenant_preemptions", [0, 4])
def test_a_request_that_waits_for_capacity_is_not_overtaken(tenant_preemptions: int) -> None:
    """Victims would not make the room for `large`; what its class gives back will, so it is not to be taken."""
    scheduler = make_scheduler(20, tenant_preemptions=tenant_preemptions)
    callers = Callers(scheduler)
    callers.add("first", PREMIUM, blocks=12)
    callers.add("victim", BATCH, blocks=3)
    step(scheduler)
    callers.add("large", PREMIUM, blocks=10)
    callers.add("small", PREMIUM, blocks=3)
    assert step(scheduler) == ["first", "victim"]
