"""Waits predicted from the real scheduler's snapshots, and the actual waits: overload in virtual time."""

from bisect import bisect
from dataclasses import dataclass, replace
from functools import partial
from random import Random

import pytest

from engine.config import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD, SamplingParams, ServiceClass
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.scheduling.cost import H200_LLAMA_8B, CostCoefficients, StepCostModel, row_work, total
from engine.scheduling.wait import QueueSnapshot, predict_drain_ns, predict_first_token_ns, retry_after_ms
from engine.scheduling.wait_calibration import WaitCalibration
from engine.simulation import make_request

SMALL_CPU = CostCoefficients(12e6, 0.6e6, 400, 100)


@dataclass(slots=True)
class Arrival:
    service_class: ServiceClass
    at_ns: int
    predicted_ns: int
    retry_ms: int
    first_token_ns: int = 0
    """0 for one that was turned away."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Requests of prompts and answers of uniform length; both rates are a second's."""

    truth: CostCoefficients
    slots: int
    step_tokens: int
    prompt_tokens: tuple[int, int]
    answer_tokens: tuple[int, int]
    standard_rate: float
    premium_rate: float
    between_steps: float = 0.0
    """Time between two steps, which no measurement includes, as a multiple of a step's."""


CPU = Machine(SMALL_CPU, 16, 512, (40, 110), (8, 24), 45, 1)
H200 = Machine(H200_LLAMA_8B, 256, 2048, (200, 3000), (50, 400), 150, 4)


def overload(
    machine: Machine, premium: bool, bound_ns: int, seconds: int, bounded: ServiceClass = STANDARD
) -> list[Arrival]:
    """All that came; a request of the bounded class that would wait for more than the bound is turned away."""
    rng = Random(1)
    config = SchedulerConfig(
        max_running=machine.slots, step_tokens=machine.step_tokens, chunk_tokens=machine.step_tokens
    )
    scheduler = Scheduler(config, KVCacheManager(BlockPool(20_000)), 8192)
    calibrations = [WaitCalibration(rank, partial(_predict, scheduler)) for rank in scheduler.ranks]
    truth = StepCostModel.from_coefficients(machine.truth)
    rates = [(STANDARD, machine.standard_rate), (PREMIUM, machine.premium_rate)][: 1 + premium]
    due = sorted(
        (int(rng.uniform(0, seconds) * 1e9), index)
        for index, (_, rate) in enumerate(rates)
        for _ in range(round(rate * seconds))
    )
    arrivals: list[Arrival] = []
    now_ns = 0
    while due and now_ns < seconds * 1e9:
        while due and due[0][0] <= now_ns:
            at_ns, index = due.pop(0)
            service_class = rates[index][0]
            most_ns = bound_ns if service_class is bounded else None
            arrivals.append(
                _arrive(scheduler, calibrations, service_class, at_ns, len(arrivals), machine, most_ns, rng)
            )
        plan = scheduler.schedule(now_ns, limits=scheduler.step_limits(now_ns))
        if plan is None:
            now_ns = due[0][0] if due else seconds * 10**9
            continue
        work = total(row_work(row.start, row.tokens) for row in plan.rows)
        elapsed_ns = int(truth.predict_ns(work) * max(rng.gauss(1, 0.1), 0.5))
        now_ns += int((1 + machine.between_steps) * elapsed_ns)
        for row in plan.rows:
            arrival = arrivals[row.request.arrival]
            arrival.first_token_ns = arrival.first_token_ns or now_ns * row.samples
        rows = tuple(RowResult(token=1 if row.samples else None) for row in plan.rows)
        scheduler.commit(plan, StepResult(rows), elapsed_ns=elapsed_ns)
        for calibration in calibrations:
            calibration.on_step(scheduler.snapshot(), now_ns)
    return arrivals


def _predict(scheduler: Scheduler, snapshot: QueueSnapshot, rank: int, prompt_tokens: int) -> int:
    return predict_first_token_ns(snapshot, rank, prompt_tokens, scheduler.cost_model)


def _arrive(
    scheduler: Scheduler,
    calibrations: list[WaitCalibration],
    service_class: ServiceClass,
    at_ns: int,
    number: int,
    machine: Machine,
    bound_ns: int | None,
    rng: Random,
) -> Arrival:
    prompt, answer = rng.randint(*machine.prompt_tokens), rng.randint(*machine.answer_tokens)
    snapshot, rank, cost = scheduler.snapshot(), scheduler.rank_of(service_class.name), scheduler.cost_model
    factor = calibrations[rank].factor
    predicted_ns = int(factor * predict_first_token_ns(snapshot, rank, prompt, cost))
    retry_ms = retry_after_ms(int(factor * predict_drain_ns(snapshot, rank, cost)), rng.random())
    if bound_ns is None or predicted_ns <= bound_ns:
        calibrations[rank].on_submit(str(number), prompt, at_ns, lambda: snapshot)
        params = SamplingParams(max_tokens=answer, ignore_eos=True)
        scheduler.add(
            make_request(
                str(number),
                [1] * prompt,
                params=params,
                salt=str(number).encode(),
                service_class=service_class,
                arrival=number,
            ),
            at_ns,
        )
    return Arrival(service_class, at_ns, predicted_ns, retry_ms)


def share_within_half(pairs: list[tuple[float, float]]) -> float:
    return sum(0.5 <= said / real <= 1.5 for said, real in pairs) / len(pairs)


@pytest.mark.parametrize("premium", [False, True])
@pytest.mark.parametrize("machine", [CPU, H200], ids=["cpu", "h200"])
def test_the_wait_and_the_time_to_come_back_are_right_to_within_half(machine: Machine, premium: bool) -> None:
    """With reserves in the way, and while premium keeps standard's prefill short."""
    seconds, bound_ns = 40, 5 * 10**9
    arrivals = overload(machine, premium, bound_ns, seconds)
    standard = [each for each in arrivals if each.service_class is STANDARD]
    steady = [each for each in standard if 0.3 * seconds < each.at_ns / 1e9 < 0.8 * seconds]
    let_in = [each for each in standard if each.first_token_ns]

    waits = [(each.predicted_ns, each.first_token_ns - each.at_ns) for each in steady if each.first_token_ns]
    assert len(waits) > 50
    assert share_within_half(waits) >= 0.9

    # in line behind all that were let in before it, a refused request would have begun when the last of them has
    began = [each.at_ns for each in let_in]
    refused = [each for each in steady if each.predicted_ns > bound_ns]
    ahead = [let_in[: bisect(began, each.at_ns)] for each in refused]
    drains = [
        (each.retry_ms, (max(other.first_token_ns for other in others[-200:]) - each.at_ns) / 1e6)
        for each, others in zip(refused, ahead, strict=True)
    ]
    assert len(drains) > 500
    assert share_within_half(drains) >= 0.9


@pytest.mark.parametrize("standard_per_s", [1, 30])
@pytest.mark.parametrize("machine", [CPU, H200], ids=["cpu", "h200"])
def test_premiums_wait_is_right_to_within_half_in_a_premium_overload(machine: Machine, standard_per_s: int) -> None:
    """It waits for its own kind alone, with a reserve that it has long outgrown; standard hardly gets in at all."""
    flooded = replace(machine, premium_rate=machine.standard_rate, standard_rate=standard_per_s)
    seconds = 30
    arrivals = overload(flooded, True, 3 * 10**9, seconds, bounded=PREMIUM)
    steady = [
        each for each in arrivals if each.service_class is PREMIUM and 0.3 * seconds < each.at_ns / 1e9 < 0.8 * seconds
    ]
    waits = [(each.predicted_ns, each.first_token_ns - each.at_ns) for each in steady if each.first_token_ns]
    assert len(waits) > 100
    assert len(waits) < len(steady), "no request was shed: no overload"
    assert sum(real for _, real in waits) / len(waits) > 2e9
    assert share_within_half(waits) >= 0.9


@pytest.mark.parametrize("between_steps", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("machine", [CPU, H200], ids=["cpu", "h200"])
def test_waits_that_come_out_longer_than_counted_are_predicted_longer(machine: Machine, between_steps: float) -> None:
    """The cost model misses lost time, yet each admitted request has its first token by the predicted time."""
    seconds, bound_ns = 60, 4 * 10**9
    arrivals = overload(replace(machine, between_steps=between_steps), False, bound_ns, seconds)
    steady = [each for each in arrivals if 0.5 * seconds < each.at_ns / 1e9 < 0.85 * seconds and each.first_token_ns]
    assert len(steady) > 50
    said, real = (
        sum(column) for column in zip(*((s.predicted_ns, s.first_token_ns - s.at_ns) for s in steady), strict=True)
    )
    assert said / real == pytest.approx(1.0, abs=0.1)
    in_time = sum(each.first_token_ns - each.at_ns <= 1.25 * bound_ns for each in steady)
    assert in_time >= 0.95 * len(steady)
