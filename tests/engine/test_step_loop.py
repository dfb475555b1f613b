"""One model's steps: one in flight beyond the one that is waited for, in order, and each for its own time."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from engine.errors import OutOfDeviceMemory
from engine.request import FinishReason, Request, SamplingParams, TokenDelta
from engine.runtime import step_loop
from engine.runtime.step_loop import DeviceClock, StepLoop
from engine.runtime.watchdog import Watchdog
from engine.scheduling import RowResult, StepPlan, StepResult
from engine.scheduling.plan import LaunchStats
from engine.simulation import FakeExecutor, make_request
from engine.speculation import (
    Candidate,
    DepthPolicy,
    DraftWant,
    FixedDepth,
    SpeculationLoad,
    Speculator,
    StepOutcome,
    Verified,
)
from tests.engine.scheduling.support import PREMIUM, family, make_scheduler, prompts

TEN = SamplingParams(max_tokens=10, ignore_eos=True)
TWO = SamplingParams(max_tokens=2, ignore_eos=True)


def never_late() -> Watchdog:
    """One that has not been started."""
    return Watchdog(60.0, lambda: None)


@dataclass
class Clock:
    """Time as the device makes it pass: nothing else takes any."""

    now_ns: int = 1_000

    def monotonic_ns(self) -> int:
        return self.now_ns


@dataclass
class Device:
    """Runs steps of 100 ns one after another, and keeps a diary. `broken` says which steps raise, and where."""

    clock: Clock
    async_depth: int
    takes_drafts: bool = False
    micro_batches: int = 1
    launches: LaunchStats | None = None
    expert_tokens: tuple[int, ...] = ()
    diary: list[str] = field(default_factory=list)
    broken: dict[str, Exception] = field(default_factory=dict)
    free_at_ns: int = 0

    def execute(self, plan: StepPlan) -> "Running":
        self.diary.append(f"launch {plan.step}")
        if error := self.broken.get(f"launch {plan.step}"):
            raise error
        self.free_at_ns = max(self.free_at_ns, self.clock.now_ns) + 100
        return Running(self, plan, self.free_at_ns)


@dataclass
class Running:
    device: Device
    plan: StepPlan
    ends_ns: int

    def result(self) -> StepResult:
        clock, step = self.device.clock, f"result {self.plan.step}"
        clock.now_ns = max(clock.now_ns, self.ends_ns)
        self.device.diary.append(step)
        if error := self.device.broken.get(step):
            raise error
        return StepResult(
            tuple(RowResult(1 if row.samples else None, accepted=row.drafts.count(1)) for row in self.plan.rows)
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(step_loop.time, "monotonic_ns", clock.monotonic_ns)
    return clock


class Machine:
    def __init__(self, clock: Clock, async_depth: int, requests: int = 1) -> None:
        self.clock = clock
        self.device = Device(clock, async_depth)
        self.scheduler = make_scheduler()
        self.steps = StepLoop(self.scheduler, self.device, DeviceClock(), never_late())
        for request in prompts(requests, 20, TEN):
            self.scheduler.add(request)

    def turns(self, most: int = 100) -> list[TokenDelta]:
        deltas: list[TokenDelta] = []
        for _ in range(most):
            if not self.steps.has_work:
                break
            deltas += self.steps.step()
            self.scheduler.check()
        return deltas

    @property
    def charged_ns(self) -> int:
        return sum(each.attributed_ns for each in self.scheduler.stats().classes)


def test_an_executor_that_computes_at_once_is_waited_for(clock: Clock) -> None:
    machine = Machine(clock, async_depth=0)
    machine.turns(2)
    assert machine.device.diary == ["launch 1", "result 1", "launch 2", "result 2"]


def test_a_device_has_its_next_step_before_it_has_finished_one(clock: Clock) -> None:
    machine = Machine(clock, async_depth=1)
    deltas = machine.turns(3)
    assert machine.device.diary == ["launch 1", "launch 2", "result 1", "launch 3", "result 2"]
    assert [delta.token_ids for delta in deltas] == [(1,), (1,)]


def test_what_is_in_flight_lands_when_nothing_is_left_to_launch(clock: Clock) -> None:
    machine = Machine(clock, async_depth=1, requests=2)
    deltas = machine.turns()
    assert [delta.finish_reason for delta in deltas].count(FinishReason.LENGTH) == 2
    assert machine.scheduler.in_flight == 0
    assert machine.device.diary.count("result 10") == 1
    assert "launch 11" not in machine.device.diary


def test_rows_of_those_that_have_left_are_waited_for_too(clock: Clock) -> None:
    machine = Machine(clock, async_depth=1)
    machine.turns(3)
    assert machine.scheduler.abort("r0")
    assert not machine.scheduler.has_work
    assert machine.steps.has_work
    assert machine.turns() == []
    assert (machine.device.diary[-1], machine.scheduler.in_flight) == ("result 3", 0)


@pytest.mark.parametrize("async_depth", [0, 1])
def test_steps_are_charged_from_their_launch_or_the_end_of_the_previous_step(clock: Clock, async_depth: int) -> None:
    """So they add up to the time of the device, also when they were launched while others ran."""
    machine = Machine(clock, async_depth)
    machine.turns()
    assert machine.charged_ns == 10 * 100
    assert clock.now_ns == 1_000 + 10 * 100


def test_models_that_share_a_device_are_not_charged_for_one_another(clock: Clock) -> None:
    device, shared = Device(clock, async_depth=1), DeviceClock()
    schedulers = [make_scheduler(), make_scheduler()]
    both = [StepLoop(scheduler, device, shared, never_late()) for scheduler in schedulers]
    for number, scheduler in enumerate(schedulers):
        scheduler.add(make_request("r", range(20), params=SamplingParams(max_tokens=5 + 5 * number, ignore_eos=True)))
    while any(steps.has_work for steps in both):
        for steps in both:
            if steps.has_work:
                steps.step()
    charged = [sum(each.attributed_ns for each in scheduler.stats().classes) for scheduler in schedulers]
    assert charged == [500, 1000]


@pytest.mark.parametrize("when", ["launch", "result"])
@pytest.mark.parametrize("async_depth", [0, 1])
def test_a_step_that_fails_ends_its_requests_and_the_model_goes_on(clock: Clock, async_depth: int, when: str) -> None:
    machine = Machine(clock, async_depth)
    machine.device.broken[f"{when} 3"] = RuntimeError("no such kernel")
    ended = machine.turns()
    assert [delta.finish_reason for delta in ended] == [None, None, FinishReason.ERROR]
    machine.scheduler.add(make_request("late", range(700, 720), arrival=9, params=TEN))
    assert machine.turns()[-1].finish_reason is FinishReason.LENGTH


def test_nothing_is_launched_behind_a_step_that_never_was(clock: Clock) -> None:
    machine = Machine(clock, async_depth=1)
    machine.device.broken["launch 3"] = RuntimeError("no such kernel")
    machine.turns()
    assert machine.device.diary == ["launch 1", "launch 2", "result 1", "launch 3", "result 2"]


@pytest.mark.parametrize("when", ["launch", "result"])
@pytest.mark.parametrize("async_depth", [0, 1])
def test_a_step_without_device_memory_is_retried_in_smaller_pieces(clock: Clock, async_depth: int, when: str) -> None:
    machine = Machine(clock, async_depth)
    machine.device.broken[f"{when} 1"] = OutOfDeviceMemory("no room for 3 GiB")
    deltas = machine.turns()
    assert [delta.finish_reason for delta in deltas] == [None] * 9 + [FinishReason.LENGTH]
    stats = machine.scheduler.stats()
    assert (stats.failures_total, stats.wasted_rows_total) == (0, 2 if (when, async_depth) == ("result", 1) else 1)
    assert machine.scheduler.in_flight == 0


def given_by(executor: FakeExecutor) -> dict[str, list[int]]:
    """Tokens of each of a few requests, some of which are forks, in a pool that is too small for all."""
    scheduler, given = make_scheduler(6, max_running=4, chunk_tokens=9), dict[str, list[int]]()
    steps = StepLoop(scheduler, executor, DeviceClock(), never_late())
    for request in (*family(3, 30, TEN), *prompts(5, 30, TEN)[3:]):
        scheduler.add(request)
    while steps.has_work:
        for delta in steps.step():
            given.setdefault(delta.request_id, []).extend(delta.token_ids)
        scheduler.check()
    return given


@pytest.mark.parametrize("at_result", [False, True])
@pytest.mark.parametrize("async_depth", [0, 1])
def test_answers_are_the_same_on_any_device(async_depth: int, at_result: bool) -> None:
    executor = FakeExecutor(6, async_depth=async_depth)
    executor.run_short(5, 30, at_result=at_result)
    assert given_by(executor) == given_by(FakeExecutor(6))


@dataclass
class Parrot:
    """Proposes what the device will draw, and takes 7 ns for it."""

    clock: Clock
    drafts: tuple[int, ...] = (1, 1, 5)
    error: Exception | None = None
    asked: int = 0
    name: str = "parrot"
    free: bool = True

    def lag(self, request: Request) -> int:
        return 0

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        self.asked += 1
        self.clock.now_ns += 7
        if self.error is not None:
            raise self.error
        return [self.drafts[: want.depth] for want in wants]


class Listener(FixedDepth):
    """A policy that only records the outcomes of steps."""

    def __init__(self, depth: int, clock: Clock | None = None) -> None:
        super().__init__(depth)
        self.heard: list[StepOutcome] = []
        self._clock = clock

    def choose(self, proposer: str, load: SpeculationLoad, candidates: Sequence[Candidate]) -> list[int]:
        """With a clock, thinks for 3 ns."""
        if self._clock is not None:
            self._clock.now_ns += 3
        return super().choose(proposer, load, candidates)

    def observe(self, outcome: StepOutcome) -> None:
        self.heard.append(outcome)


class TestDrafting:
    def machine(
        self,
        clock: Clock,
        parrot: Parrot,
        policy: DepthPolicy,
        async_depth: int = 0,
        *,
        prompt_tokens: int = 20,
        params: SamplingParams = TEN,
    ) -> Machine:
        machine = Machine(clock, async_depth, requests=0)
        for request in prompts(1, prompt_tokens, params):
            machine.scheduler.add(request)
        machine.device.takes_drafts = True
        speculator = Speculator([parrot], policy, clock.monotonic_ns)
        machine.steps = StepLoop(machine.scheduler, machine.device, DeviceClock(), never_late(), speculator)
        return machine

    @pytest.mark.parametrize("async_depth", [0, 1])
    def test_what_is_right_comes_at_once(self, clock: Clock, async_depth: int) -> None:
        machine = self.machine(clock, Parrot(clock), FixedDepth(3), async_depth)
        deltas = machine.turns()
        assert [len(delta.token_ids) for delta in deltas] == [1, 3, 3, 3]
        assert deltas[-1].finish_reason is FinishReason.LENGTH
        usage = deltas[-1].usage
        assert (usage.draft_tokens, usage.accepted_draft_tokens) == (3 + 3 + 2, 6)

    def test_a_device_is_not_ahead_of_what_is_drafted_for(self, clock: Clock) -> None:
        machine = self.machine(clock, Parrot(clock), FixedDepth(3), async_depth=1)
        machine.turns()
        assert machine.device.diary == [f"{what} {step}" for step in (1, 2, 3, 4) for what in ("launch", "result")]

    def test_a_device_is_ahead_of_prompts_that_are_computed_in_chunks(self, clock: Clock) -> None:
        """64 tokens a step: no step but the last of the prompt samples a token that drafts could follow."""
        machine = self.machine(clock, Parrot(clock), FixedDepth(3), async_depth=1, prompt_tokens=200)
        deltas = machine.turns()
        assert [len(delta.token_ids) for delta in deltas] == [1, 3, 3, 3]
        ahead = ["launch 1", "launch 2", "result 1", "launch 3", "result 2", "launch 4", "result 3", "result 4"]
        assert machine.device.diary[:8] == ahead
        assert machine.device.diary[8:] == [f"{what} {step}" for step in (5, 6, 7) for what in ("launch", "result")]

    def test_a_device_is_ahead_of_answers_without_room_for_a_draft(self, clock: Clock) -> None:
        """Of two tokens, the first follows the prompt, and the step for the second one samples it."""
        machine = self.machine(clock, Parrot(clock), FixedDepth(3), async_depth=1, params=TWO)
        machine.turns(1)
        for request in prompts(2, 20, TWO)[1:]:
            machine.scheduler.add(request)
        deltas = machine.turns()
        assert machine.device.diary[:4] == ["launch 1", "launch 2", "result 1", "launch 3"]
        assert [len(delta.token_ids) for delta in deltas] == [1, 1, 1, 1]

    def test_a_class_that_has_no_drafts_does_not_hold_the_device_back(self, clock: Clock) -> None:
        class LowerClassAlone(FixedDepth):
            def depth(self, proposer: str, rank: int, load: SpeculationLoad) -> int:
                return 3 if rank else 0

        machine = self.machine(clock, Parrot(clock), LowerClassAlone(3), async_depth=1)
        machine.scheduler.abort("r0")
        machine.scheduler.add(make_request("premium", range(20), params=TEN, service_class=PREMIUM))
        machine.turns(3)
        assert machine.device.diary == ["launch 1", "launch 2", "result 1", "launch 3", "result 2"]

    def test_a_device_is_ahead_while_nothing_is_to_be_drafted(self, clock: Clock) -> None:
        parrot = Parrot(clock)
        machine = self.machine(clock, parrot, FixedDepth(0), async_depth=1)
        machine.turns(3)
        assert machine.device.diary == ["launch 1", "launch 2", "result 1", "launch 3", "result 2"]
        assert not parrot.asked

    def test_drafting_is_charged_with_the_steps(self, clock: Clock) -> None:
        parrot = Parrot(clock)
        machine = self.machine(clock, parrot, FixedDepth(3))
        machine.turns()
        assert parrot.asked == 3
        assert machine.charged_ns == 4 * 100 + 3 * 7

    def test_the_policy_hears_of_every_step(self, clock: Clock) -> None:
        policy = Listener(3)
        self.machine(clock, Parrot(clock), policy).turns()
        assert [(each.elapsed_ns, each.drafting_ns, each.prefill_tokens) for each in policy.heard] == [
            (100, 0, 19),
            *[(100, 7, 0)] * 3,
        ]
        assert policy.heard[1].verified == (Verified("parrot", 1, 3, 2),)

    @pytest.mark.parametrize(("async_depth", "taken_ns"), [(0, 100), (1, 103)])
    def test_idle_device_time_is_charged_to_drafts(self, clock: Clock, async_depth: int, taken_ns: int) -> None:
        """Idle time in which the device could have run the next step. Usage covers only computed work."""
        policy = Listener(3, clock)
        machine = self.machine(clock, Parrot(clock), policy, async_depth)
        machine.turns()
        assert [each.elapsed_ns for each in policy.heard] == [100, *[taken_ns] * 3]
        assert machine.charged_ns == 4 * 100 + 3 * 7

    def test_a_proposer_that_fails_is_not_asked_again(self, clock: Clock) -> None:
        parrot = Parrot(clock, error=RuntimeError("no idea"))
        machine = self.machine(clock, parrot, FixedDepth(3))
        assert [len(delta.token_ids) for delta in machine.turns()] == [1] * 10
        assert parrot.asked == 1

    def test_one_for_which_there_is_no_room_is(self, clock: Clock) -> None:
        parrot = Parrot(clock, error=OutOfDeviceMemory("no room"))
        machine = self.machine(clock, parrot, FixedDepth(3))
        assert [len(delta.token_ids) for delta in machine.turns()] == [1] * 10
        assert parrot.asked == 8  # not for the first token, nor where one is left

    def test_an_executor_that_takes_no_drafts_is_given_none(self, clock: Clock) -> None:
        parrot = Parrot(clock)
        machine = Machine(clock, 0)
        speculator = Speculator([parrot], FixedDepth(3), clock.monotonic_ns)
        machine.steps = StepLoop(machine.scheduler, machine.device, DeviceClock(), never_late(), speculator)
        assert [len(delta.token_ids) for delta in machine.turns()] == [1] * 10
        assert not parrot.asked


@pytest.mark.parametrize("async_depth", [0, 1])
def test_what_is_to_be_done_before_a_launch_is_done_before_each(clock: Clock, async_depth: int) -> None:
    machine = Machine(clock, async_depth, requests=0)
    diary = machine.device.diary
    machine.steps = StepLoop(
        machine.scheduler, machine.device, DeviceClock(), never_late(), before_launch=lambda: diary.append("before")
    )
    machine.steps.step()
    assert diary == [], "nothing is launched"
    for request in prompts(1, 20, TEN):
        machine.scheduler.add(request)
    machine.turns()
    told = [each for each in diary if not each.startswith("result")]
    assert told == [each for step in range(1, 11) for each in ("before", f"launch {step}")]
