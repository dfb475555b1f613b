"""Cost of one step of the scheduler: `python -m benchmarks.scheduler_step`.

256 running requests, of two classes and eight tenants, decode one token a step each, from prompts of 512 tokens in a
pool that holds them all: a sixteenth of them need a block in each step and publish one. The figure is the time of
`schedule` plus `commit`, the division of the step's time included; the outcomes of the executor are made outside of
it. Budget: 0.5 ms a step in the median.
"""

import math
import random
import statistics
import time
from collections.abc import Sequence

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD, SamplingParams
from engine.scheduling import RowResult, Scheduler, StepPlan, StepResult
from engine.simulation import make_request

RUNNING = 256
PROMPT_TOKENS = 512
OUTPUT_TOKENS = 700
TENANTS = 8
STEPS = 512
STEP_NS = 20_000_000
BUDGET_MS = 0.5


def outcome_of(plan: StepPlan) -> StepResult:
    return StepResult(tuple(RowResult(token=1 if row.samples else None) for row in plan.rows))


def decoding_scheduler(running: int) -> Scheduler:
    """A scheduler with `running` requests that have all computed their prompts, at differing offsets in their last
    block."""
    rng, premium = random.Random(0), math.ceil(PREMIUM.reserved_fraction * running)
    num_blocks = running * (PROMPT_TOKENS + BLOCK_TOKENS + OUTPUT_TOKENS) // BLOCK_TOKENS + running
    cache = KVCacheManager(BlockPool(num_blocks))
    scheduler = Scheduler(SchedulerConfig(max_running=running, step_tokens=2**20, chunk_tokens=2**20), cache, 2**20)
    for number in range(running):
        prompt = [rng.randrange(100_000) for _ in range(PROMPT_TOKENS + number % BLOCK_TOKENS)]
        params = SamplingParams(max_tokens=OUTPUT_TOKENS, ignore_eos=True)
        scheduler.add(
            make_request(
                f"request-{number}",
                prompt,
                arrival=number,
                params=params,
                eos_token_ids=(0,),
                tenant=f"tenant-{number % TENANTS}",
                service_class=PREMIUM if number < premium else STANDARD,
            )
        )
    decoding = False
    while not decoding:  # blocks are allocated to some of them in each step
        plan = scheduler.schedule()
        if plan is not None:
            scheduler.commit(plan, outcome_of(plan), elapsed_ns=STEP_NS)
            decoding = len(plan.rows) == running and plan.total_tokens == running
    return scheduler


def measure() -> tuple[list[float], list[float]]:
    """Milliseconds of `schedule` and of `commit`, of each step."""
    scheduler = decoding_scheduler(RUNNING)
    schedule_ms, commit_ms = [], []
    for _ in range(STEPS):
        started = time.perf_counter()
        plan = scheduler.schedule()
        scheduled = time.perf_counter()
        assert plan is not None
        assert len(plan.rows) == RUNNING
        outcome = outcome_of(plan)
        landed = time.perf_counter()
        scheduler.commit(plan, outcome, elapsed_ns=STEP_NS)
        committed = time.perf_counter()
        schedule_ms.append((scheduled - started) * 1e3)
        commit_ms.append((committed - landed) * 1e3)
    return schedule_ms, commit_ms


def describe(name: str, values_ms: Sequence[float]) -> str:
    p99 = statistics.quantiles(values_ms, n=100)[98]
    return f"{name:10} median {statistics.median(values_ms):6.3f} ms   p99 {p99:6.3f} ms"


def main() -> None:
    schedule_ms, commit_ms = measure()
    step_ms = [a + b for a, b in zip(schedule_ms, commit_ms, strict=True)]
    print(f"{RUNNING} running decode requests, {STEPS} steps, budget {BUDGET_MS} ms a step")
    print(describe("schedule", schedule_ms))
    print(describe("commit", commit_ms))
    print(describe("step", step_ms))


if __name__ == "__main__":
    main()
