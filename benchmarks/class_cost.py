"""Cost of classes to traffic of one class: `python -m benchmarks.class_cost`.

Throughput with the default classes configured, all requests of one of them, over that with a single class; bound: at
least 0.98. The scheduler is the real one; the device is a cost model, so that two runs differ by what classes change
and by nothing else: a step takes the model's time for the work that was planned, plus the time that the scheduler
itself took, measured. The two take turns (ABBA...) on the same requests; each pair of neighbours gives a ratio, and the
figure is their median, with an interval from resampling the pairs.

Standard is measured where its requests fit what a reserve leaves it, and, as "saturated", where more are under way than
there are slots.
"""

import argparse
import gc
import time
from collections import deque
from dataclasses import dataclass

from benchmarks.intervals import bootstrap_median
from benchmarks.traffic import Job, make_jobs
from engine import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD, Request, SamplingParams, ServiceClass
from engine.scheduling import RowResult, Scheduler, StepPlan, StepResult
from engine.scheduling.cost import H200_LLAMA_8B, CostCoefficients, StepCostModel, step_work

BOUND = 0.98
VOCAB_SIZE = 49_152
NUM_BLOCKS = 4096
MAX_MODEL_LEN = 2048
ONE_CLASS = ServiceClass("one", 0)
CPU_135M = CostCoefficients(12e6, 0.6e6, 400, 100)
"""Of the order that SmolLM2-135M has on two cores: 12 ms a step, 0.6 ms a token."""
DEVICES = {"two cores, 135 M": CPU_135M, "H200, 8 B": H200_LLAMA_8B}


@dataclass(frozen=True, slots=True)
class Case:
    """`requests` in a run, `under_way` at a time, each started when another ends."""

    name: str
    service_class: ServiceClass
    under_way: int
    requests: int


CASES = (
    Case("premium alone", PREMIUM, 24, 240),
    Case("standard alone", STANDARD, 24, 240),
    Case("standard alone, saturated", STANDARD, 128, 640),
)


def requests_of(jobs: list[Job], service_class: ServiceClass) -> list[Request]:
    return [
        Request(
            id=str(index),
            tokens=list(job.prompt),
            prompt_tokens=len(job.prompt),
            params=SamplingParams(temperature=0, ignore_eos=True),
            seed=index,
            max_tokens=job.output_tokens,
            eos_token_ids=(),
            arrival=index,
            service_class=service_class,
            tenant="tenant",
        )
        for index, job in enumerate(jobs)
    ]


def tokens_per_s(config: SchedulerConfig, device: StepCostModel, requests: list[Request], under_way: int) -> float:
    """Output tokens a second, until all requests are done, by a clock that adds up both kinds of time."""
    scheduler = Scheduler(config, KVCacheManager(BlockPool(NUM_BLOCKS)), MAX_MODEL_LEN)
    pending = deque(requests)
    now_ns = 0
    for _ in range(min(under_way, len(pending))):
        scheduler.add(pending.popleft(), now_ns)
    while True:
        began_ns = time.perf_counter_ns()
        plan = scheduler.schedule(now_ns, limits=scheduler.step_limits(now_ns))
        planned_ns = time.perf_counter_ns()
        if plan is None:
            break
        step_ns, outcome = _compute(device, plan)
        landed_ns = time.perf_counter_ns()
        deltas = scheduler.commit(plan, outcome, elapsed_ns=step_ns)
        now_ns += planned_ns - began_ns + step_ns + time.perf_counter_ns() - landed_ns
        for delta in deltas:
            if delta.finish_reason is not None and pending:
                scheduler.add(pending.popleft(), now_ns)
    assert not scheduler.has_work
    return sum(request.output_tokens for request in requests) / now_ns * 1e9


def _compute(device: StepCostModel, plan: StepPlan) -> tuple[int, StepResult]:
    work = step_work([row.start for row in plan.rows], [row.tokens for row in plan.rows])
    return device.predict_ns(work), StepResult(tuple(RowResult(token=1 if row.samples else None) for row in plan.rows))


def measure(device: StepCostModel, case: Case, pairs: int) -> None:
    on, off = SchedulerConfig(), SchedulerConfig(classes=(ONE_CLASS,))

    def run(config: SchedulerConfig, service_class: ServiceClass, seed: int) -> float:
        requests = requests_of(make_jobs(case.requests, VOCAB_SIZE, seed=seed), service_class)
        gc.collect()
        gc.disable()
        try:
            return tokens_per_s(config, device, requests, case.under_way)
        finally:
            gc.enable()

    ratios, rates = [], []
    for pair in range(pairs):
        order = (True, False) if pair % 2 == 0 else (False, True)
        rate = {
            classes: run(on, case.service_class, pair) if classes else run(off, ONE_CLASS, pair) for classes in order
        }
        ratios.append(rate[True] / rate[False])
        rates.append(rate[False])
    print(
        f"  {case.name:26} {case.under_way:3} under way  {bootstrap_median(ratios):.3f}"
        f"   (classes off: {bootstrap_median(rates):.0f} tok/s; {pairs} pairs of {case.requests} requests)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=12)
    options = parser.parse_args()
    print(f"{SchedulerConfig().max_running} slots; output tok/s, classes on over off (at least {BOUND})")
    for name, coefficients in DEVICES.items():
        print(name)
        for case in CASES:
            measure(StepCostModel.from_coefficients(coefficients), case, options.pairs)


if __name__ == "__main__":
    main()
