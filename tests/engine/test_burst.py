"""Requests that arrive all at once: each admitted one has a first token within the bound. In virtual time."""

from dataclasses import dataclass
from random import Random

import pytest

from engine.config import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import STANDARD, Request, SamplingParams
from engine.runtime.reservation import ExpectedPrompt, Reservation
from engine.runtime.wait_prediction import WaitPredictor
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.scheduling.cost import CostCoefficients, StepCostModel, row_work, total
from engine.scheduling.step_slowdown import StepSlowdown
from engine.simulation import make_request

TRUTH = CostCoefficients(12e6, 0.6e6, 400, 100)
SLOTS, CLIENTS = 16, 120
BOUND_NS, MARGIN = 5 * 10**9, 1.25


@dataclass(frozen=True, slots=True)
class LetIn:
    at_ns: int
    request: Request
    reservation: Reservation


class Machine:
    """A scheduler whose steps take the time that they take, and the predictor that its core keeps of it."""

    def __init__(self) -> None:
        config = SchedulerConfig(max_running=SLOTS, step_tokens=512, chunk_tokens=512, classes=(STANDARD,))
        truth = StepCostModel.from_coefficients(TRUTH)
        self.scheduler = Scheduler(config, KVCacheManager(BlockPool(5_000)), 2048, truth)
        self.predictor = WaitPredictor(self.scheduler, StepSlowdown())
        self.rng = Random(1)
        self.now_ns = 0
        self.arrivals = 0
        self.reserved: list[LetIn] = []
        self.waits_ns: list[int] = []
        self._at_ns: dict[Request, int] = {}

    def arrive(self) -> None:
        """Let in, or turned away, as the gateway does it."""
        self.arrivals += 1
        tokens, answer = self.rng.randint(20, 200), self.rng.randint(60, 100)
        wait = self.predictor.predicted_wait("standard", tokens)
        if wait.drain_ns and MARGIN * wait.first_token_ns > BOUND_NS:
            return
        params = SamplingParams(max_tokens=answer, ignore_eos=True)
        prompt = [self.arrivals] * tokens
        request = make_request(
            str(self.arrivals), prompt, arrival=self.arrivals, params=params, salt=bytes([self.arrivals])
        )
        reservation = self.predictor.reserve("standard")
        reservation.expect([ExpectedPrompt(tokens, 1, answer)])
        self.reserved.append(LetIn(self.now_ns, request, reservation))

    def submit(self) -> None:
        """All that were let in."""
        for each in self.reserved:
            self.predictor.on_submit([each.request], each.reservation)
            self.scheduler.add(each.request, each.at_ns)
            self._at_ns[each.request] = each.at_ns
            self.predictor.on_enqueue(each.request, self.now_ns)
        self.predictor.refresh(self.now_ns, [each.request.id for each in self.reserved])
        self.reserved.clear()
        assert self.predictor.reservations == 0

    def step(self) -> None:
        plan = self.scheduler.schedule(self.now_ns)
        assert plan is not None
        self.predictor.refresh(self.now_ns)
        elapsed_ns = self.scheduler.cost_model.predict_ns(total(row_work(row.start, row.tokens) for row in plan.rows))
        self.now_ns += elapsed_ns
        for row in plan.rows:
            if row.samples and row.request in self._at_ns:
                self.waits_ns.append(self.now_ns - self._at_ns.pop(row.request))
        rows = tuple(RowResult(1 if row.samples else None) for row in plan.rows)
        self.scheduler.commit(plan, StepResult(rows), elapsed_ns=elapsed_ns)
        self.predictor.refresh(self.now_ns, stepped=True)

    def run(self, until_ns: int | None = None) -> None:
        while self.scheduler.has_work and (until_ns is None or self.now_ns < until_ns):
            self.step()


def burst(apart_ns: int) -> list[int]:
    """How long those waited that were let in, after a few answers have told how long they become."""
    machine = Machine()
    for _ in range(SLOTS):
        machine.arrive()
    machine.submit()
    machine.run()
    machine.waits_ns.clear()
    begun_ns = machine.now_ns
    for number in range(CLIENTS):
        if apart_ns:
            due_ns = begun_ns + number * apart_ns
            machine.run(due_ns)
            machine.now_ns = max(machine.now_ns, due_ns)
        machine.arrive()
        if apart_ns:
            machine.submit()
    machine.submit()
    machine.run()
    return machine.waits_ns


@pytest.mark.parametrize("apart_ms", [0, 1, 20])
def test_all_that_are_let_in_are_served_within_the_bound(apart_ms: int) -> None:
    waits_ns = burst(apart_ms * 10**6)
    assert max(waits_ns) <= BOUND_NS
    assert SLOTS < len(waits_ns) < CLIENTS


def test_as_many_at_once_as_within_a_moment() -> None:
    at_once, apart = (len(burst(apart_ns)) for apart_ns in (0, 10**5))
    assert at_once == pytest.approx(apart, abs=2)
