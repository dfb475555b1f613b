"""The event loop reads the actual state of an engine's queues, however the waiting requests end."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.config import SchedulerConfig
from engine.errors import EngineError
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD, FinishReason, Request, SamplingParams, TokenDelta
from engine.runtime import step_loop
from engine.runtime.core import EngineCore
from engine.runtime.reservation import ExpectedPrompt, Reservation
from engine.runtime.thread import EngineThread
from engine.scheduling import RowResult, Scheduler, StepPlan, StepResult
from engine.scheduling.plan import LaunchStats
from engine.simulation import make_request

MODELS = ("a", "b")


@dataclass
class Step:
    plan: StepPlan
    fails: bool

    def result(self) -> StepResult:
        if self.fails:
            raise RuntimeError("a kernel failed")
        return StepResult(tuple(RowResult(token=1 if row.samples else None) for row in self.plan.rows))


@dataclass
class Device:
    async_depth: int = 0
    micro_batches: int = 1
    takes_drafts: bool = False
    launches: LaunchStats | None = None
    fails: bool = False

    def execute(self, plan: StepPlan) -> Step:
        return Step(plan, self.fails)


@dataclass
class Machine:
    """A core whose engine thread is the test: nothing happens by itself."""

    core: EngineCore
    devices: dict[str, Device]
    deltas: list[TokenDelta] = field(default_factory=list)
    submitted: dict[str, list[Request]] = field(default_factory=lambda: {name: [] for name in MODELS})

    def submit(
        self,
        model: str,
        choices: int = 1,
        tokens: int = 8,
        *,
        premium: bool = False,
        reservation: Reservation | None = None,
    ) -> list[Request]:
        number = sum(map(len, self.submitted.values()))
        params = SamplingParams(max_tokens=4, ignore_eos=True)
        requests: list[Request] = []
        for choice in range(choices):
            request = make_request(
                f"r{number + choice}",
                [1] * tokens,
                arrival=number + choice,
                params=params,
                service_class=PREMIUM if premium else STANDARD,
                fork_of=requests[0] if requests else None,
            )
            requests.append(request)
        self.core.submit(model, requests, self.deltas.extend, reservation)
        self.submitted[model] += requests
        return requests

    def abort(self, model: str, requests: list[Request]) -> None:
        self.core.abort(model, [request.id for request in requests], lambda: None)

    def take_in(self) -> None:
        """Only where there is something: the engine thread sleeps where there is not."""
        if self.core._inbox:
            self.core._receive()
        self.check()

    def step(self, model: str) -> None:
        self.take_in()
        self.core._step(self.core._runtimes[model])
        self.check()

    def run(self) -> None:
        self.take_in()
        while self.core._has_work():
            for model in MODELS:
                self.step(model)

    def scheduler(self, model: str) -> Scheduler:
        return self.core._runtimes[model].scheduler

    def check(self) -> None:
        """Where nothing is on its way, the wait_predictor is what the scheduler would be asked for now."""
        for model in MODELS:
            runtime = self.core._runtimes[model]
            runtime.wait_predictor.check()
            if not self.core._inbox and not self.core.reservations(model):
                assert self.core.queue_depth(model) == runtime.scheduler.waiting

    def assert_idle(self) -> None:
        """A lone request is let in."""
        for model in MODELS:
            assert not self.scheduler(model).has_work
            assert (self.core.queue_depth(model), self.core.reservations(model)) == (0, 0)
            for name in ("premium", "standard"):
                assert self.core.predicted_wait(model, name, 8).drain_ns == 0


def make_machine(thread: EngineThread, async_depth: int = 0) -> Machine:
    devices = {name: Device(async_depth) for name in MODELS}
    config = SchedulerConfig(max_running=2, classes=(PREMIUM, STANDARD))
    models = {
        name: (Scheduler(config, KVCacheManager(BlockPool(64)), 512), device, None) for name, device in devices.items()
    }
    return Machine(EngineCore(models, thread, step_timeout_seconds=60.0), devices)


@pytest.fixture
def thread() -> Iterator[EngineThread]:
    thread = EngineThread()
    yield thread
    thread.close()


@pytest.mark.parametrize("steps_between", [0, 1])
def test_those_that_leave_while_they_wait_are_waited_for_no_more(thread: EngineThread, steps_between: int) -> None:
    machine = make_machine(thread)
    requests = [machine.submit("a")[0] for _ in range(128)]
    for _ in range(steps_between):
        machine.step("a")
    machine.abort("a", requests)
    machine.run()
    machine.assert_idle()


def test_those_that_leave_during_a_step_are_waited_for_no_more_before_it_ends(thread: EngineThread) -> None:
    """Requests in the inbox leave it at once, however long the step takes."""
    machine = make_machine(thread)
    machine.submit("a")
    machine.step("a")
    late = [machine.submit("a")[0] for _ in range(9)]
    assert machine.core.queue_depth("a") > 0
    machine.abort("a", late)
    assert machine.core.queue_depth("a") == 0
    machine.run()
    machine.assert_idle()


def test_those_that_pause_wait_for_nothing_until_they_are_read_again(thread: EngineThread) -> None:
    machine = make_machine(thread)
    requests = [machine.submit("a")[0] for _ in range(5)]
    machine.step("a")
    ids = [request.id for request in requests]
    machine.core.pause("a", ids)
    machine.take_in()
    assert machine.core.queue_depth("a") == 0
    machine.core.resume("a", ids)
    machine.take_in()
    assert machine.core.queue_depth("a") == 5
    machine.run()
    machine.assert_idle()


def test_those_that_the_scheduler_refuses_are_not_waited_for(thread: EngineThread) -> None:
    machine = make_machine(thread)
    for _ in range(5):
        machine.submit("a", tokens=600)
    assert machine.core.queue_depth("a") > 0
    machine.take_in()
    machine.assert_idle()
    assert [delta.finish_reason for delta in machine.deltas] == [FinishReason.ERROR] * 5


def test_those_that_fail_are_not_waited_for(thread: EngineThread) -> None:
    machine = make_machine(thread)
    for _ in range(5):
        machine.submit("a")
    machine.devices["a"].fails = True
    machine.run()
    machine.assert_idle()
    assert [delta.finish_reason for delta in machine.deltas] == [FinishReason.ERROR] * 5


def test_an_engine_that_is_closed_has_no_queue_and_takes_no_place_from_a_reservation(thread: EngineThread) -> None:
    machine = make_machine(thread)
    machine.submit("a")
    machine.take_in()
    machine.submit("b")
    with machine.core.reserve("b", "standard") as reservation:
        machine.core._end_all(FinishReason.ABORT)
        with pytest.raises(EngineError):
            machine.submit("b", reservation=reservation)
        assert machine.core.reservations("b") == 1
    for model in MODELS:
        assert (machine.core.queue_depth(model), machine.core.reservations(model)) == (0, 0)


def test_a_burst_waits_as_long_whether_the_engine_has_it_or_not(thread: EngineThread) -> None:
    """Reserved, or taken in by the engine before the next one comes."""
    waits = []
    for at_once in (True, False):
        machine = make_machine(thread)
        waits.append([])
        for _ in range(40):
            waits[-1].append(machine.core.predicted_wait("a", "standard", 8).first_token_ns)
            if at_once:
                machine.core.reserve("a", "standard").expect([ExpectedPrompt(8, 1, 4)])
            else:
                machine.submit("a")
                machine.take_in()
    assert waits[0] == waits[1] == sorted(waits[0])
    assert waits[0][-1] > 10 * waits[0][0]


@pytest.mark.parametrize("leaves", ["aborted", "paused"])
def test_the_time_after_the_last_request_has_left_makes_no_wait_longer(
    thread: EngineThread, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    """The engine is idle for an hour after a request that left between two steps."""
    now_ns = 0
    monkeypatch.setattr(step_loop.time, "monotonic_ns", lambda: now_ns)
    machine = make_machine(thread)

    def step() -> None:
        nonlocal now_ns
        now_ns += 5_000_000
        machine.step("a")

    for _ in range(100):
        machine.submit("a")
        while machine.core._inbox or machine.core._has_work():
            step()
    before = machine.core._runtimes["a"].step_loop.pace.factor
    (last,) = machine.submit("a")
    step()
    if leaves == "aborted":
        machine.abort("a", [last])
    else:
        machine.core.pause("a", [last.id])
    step()
    assert not machine.core._has_work()
    now_ns += 3600 * 1_000_000_000
    machine.submit("a")
    step()
    assert machine.core._runtimes["a"].step_loop.pace.factor == pytest.approx(before, rel=0.05)


actions = st.lists(
    st.tuples(
        st.sampled_from(["submit", "reserve", "use", "release", "abort", "pause", "resume", "take in", "step", "fail"]),
        st.integers(0, 2**16),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions, st.sampled_from([0, 1]))
def test_the_queue_is_always_exact(thread: EngineThread, todo: list[tuple[str, int]], async_depth: int) -> None:
    machine = make_machine(thread, async_depth)
    core = machine.core
    reserved = [(model, core.reserve(model, "premium")) for model in MODELS]
    for action, number in todo:
        model = MODELS[number % 2]
        known = machine.submitted[model]
        some = [request for index, request in enumerate(known) if number >> (index % 16) & 1]
        ids = [request.id for request in some]
        match action:
            case "submit":
                machine.submit(model, 1 + number % 3, 1 + number % 40, premium=number % 5 == 0)
            case "reserve":
                reservation = core.reserve(model, "standard")
                reservation.expect([ExpectedPrompt(1 + number % 7, 1 + number % 2, 4)] * (1 + number % 3))
                reserved.append((model, reservation))
            case "use":
                model, reservation = reserved[number % len(reserved)]
                machine.submit(model, tokens=1 + number % 7, reservation=reservation)
            case "release":
                reserved[number % len(reserved)][1].release()
            case "abort":
                machine.abort(model, some)
            case "pause":
                core.pause(model, ids)
            case "resume":
                core.resume(model, ids)
            case "take in":
                machine.take_in()
            case "step":
                machine.devices[model].fails = False
                machine.step(model)
            case "fail":
                machine.devices[model].fails = True
                machine.step(model)
        for each in MODELS:
            core._runtimes[each].wait_predictor.check()
    for device in machine.devices.values():
        device.fails = False
    for _, reservation in reserved:
        reservation.release()
    for model in MODELS:
        core.resume(model, [request.id for request in machine.submitted[model]])
    machine.run()
    machine.assert_idle()
