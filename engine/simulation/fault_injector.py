"""Applies a simulation's faults: to its device, or to a request, which is aborted, preempted or paused."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.request import Phase, Request
from engine.scheduling import Scheduler
from engine.simulation.device import Device
from engine.simulation.driver import Transcript
from engine.simulation.fake_executor import FakeExecutor
from engine.simulation.time_audit import TimeAuditor
from engine.simulation.traffic import Fault, FaultKind

TO_A_REQUEST = (FaultKind.ABORT, FaultKind.PREEMPT, FaultKind.PAUSE)


@dataclass(frozen=True, slots=True)
class _Paused:
    """A paused request, and when its pause begins and ends."""

    request: Request
    since_ns: int
    until_ns: int


class FaultInjector:
    """`counts`: faults by kind and circumstances. `aborted`: what aborted requests were given; they leave
    `transcripts`. `record`: called with each event."""

    def __init__(
        self,
        scheduler: Scheduler,
        executor: FakeExecutor,
        device: Device,
        time_auditor: TimeAuditor,
        transcripts: dict[str, Transcript],
        record: Callable[[str], None],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.aborted: dict[str, Transcript] = {}
        self._scheduler = scheduler
        self._executor = executor
        self._device = device
        self._time_auditor = time_auditor
        self._transcripts = transcripts
        self._record = record
        self._paused: list[_Paused] = []

    @property
    def pauses_end_ns(self) -> list[int]:
        """When the pauses end."""
        return [paused.until_ns for paused in self._paused]

    def apply(self, fault: Fault, requests: Sequence[Request], now_ns: int) -> int:
        """Apply a fault, to one of the unfinished `requests` if it is of that kind. Returns the time afterwards."""
        match fault.kind:
            case FaultKind.ABORT | FaultKind.PREEMPT | FaultKind.PAUSE:
                self._apply_to_request(fault, requests, now_ns)
                return now_ns
            case FaultKind.FAILURE:
                self._executor.fail_next()
            case FaultKind.SHORTAGE:
                self._executor.run_short(fault.tokens, fault.steps, at_result=fault.in_flight)
            case FaultKind.JUMP:
                now_ns += fault.ns
            case _:
                self._device.apply(fault)
        name = fault.kind.name.lower()
        self.counts[name] += 1
        self._record(f"{name} of {fault.steps} steps, {fault.ns} ns")
        return now_ns

    def resume(self, now_ns: int) -> None:
        """Resume the requests whose pause is over."""
        for paused in [paused for paused in self._paused if paused.until_ns <= now_ns]:
            assert self._scheduler.resume(paused.request.id, now_ns)
            assert not self._scheduler.resume(paused.request.id)
            self._end_pause(paused.request, now_ns)
            self._record(f"{paused.request.id} is read again")

    def _apply_to_request(self, fault: Fault, requests: Sequence[Request], now_ns: int) -> None:
        alive = [request for request in requests if request.phase is not Phase.FINISHED]
        if not alive:
            return
        victim = alive[fault.rank % len(alive)]
        when = "in flight" if fault.in_flight else "between steps"
        if fault.kind is FaultKind.ABORT:
            self._abort(victim, when, now_ns)
        elif fault.kind is FaultKind.PAUSE:
            self._pause(victim, when, now_ns, now_ns + fault.ns)
        elif self._scheduler.preempt(victim.id):
            self.counts[f"preempt {when}"] += 1
        self._record(f"{fault.kind.name.lower()} of {victim.id}")

    def _abort(self, victim: Request, when: str, now_ns: int) -> None:
        self.counts[f"abort {when}, {_standing(victim)}"] += 1
        self._end_pause(victim, now_ns)
        assert self._scheduler.abort(victim.id, now_ns)
        assert not self._scheduler.abort(victim.id)
        assert not victim.block_table, "an aborted request keeps blocks"
        assert not victim.window_tables, "an aborted request keeps blocks in its windows"
        assert victim.state is None, "an aborted request keeps its state"
        self.aborted[victim.id] = self._transcripts.pop(victim.id)

    def _pause(self, request: Request, when: str, now_ns: int, until_ns: int) -> None:
        standing, paused = _standing(request), request.phase is Phase.PAUSED
        assert self._scheduler.pause(request.id, now_ns) != paused
        held = (request.slot, request.block_table, request.computed)
        assert held == (None, [], 0), "a paused request holds a slot or blocks"
        if not paused:
            self.counts[f"pause {when}, {standing}"] += 1
            self._paused.append(_Paused(request, now_ns, until_ns))

    def _end_pause(self, request: Request, now_ns: int) -> None:
        """Record the end of a request's pause, if it is paused, because it resumes or ends."""
        for paused in [paused for paused in self._paused if paused.request is request]:
            self._paused.remove(paused)
            self._time_auditor.on_pause_end(request, now_ns - paused.since_ns)


def _standing(request: Request) -> str:
    """The state of a request, in the cases that an abort distinguishes."""
    if request.phase is Phase.PAUSED:
        return "paused"
    if request.phase is Phase.RUNNING:
        return "in prefill" if request.output_tokens == 0 else "in decode"
    if request.preemptions:
        return "preempted"
    return "waiting" if request.fork_of is None else "waiting as a fork"
