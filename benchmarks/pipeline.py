"""Steps in flight in a pipeline: `python -m benchmarks.pipeline`. Idle stages and tokens a second, with one step at a
time against as many as stages.

In virtual time: the real scheduler and a device of two to eight stages, each of which takes an equal part of the time
that the cost model of Llama 3.1 8B says of a step. Equal calls give equal counts. Then really: SmolLM2 on two processes
(`pipeline_parallel = 2`) of one thread each, in turn with one step at a time and with two; greedy answers are compared.
`--rounds 0` leaves that out.
"""

import argparse
import statistics
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.catalog.catalog import fetch
from engine.memory import BlockPool, KVCacheManager
from engine.request import STANDARD
from engine.scheduling import PendingStep, Scheduler, StepPlan
from engine.scheduling.cost import H200_LLAMA_8B, StepCostModel, row_work, total
from engine.simulation import FakeExecutor, make_request
from engine.simulation.device import Stages
from gateway.config.settings import Settings

STAGES = (2, 4, 8)
REQUESTS = (1, 2, 8, 32)
PROMPT_TOKENS, ANSWER_TOKENS = 200, 64
ANSWER = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0, ignore_eos=True)


class Run(NamedTuple):
    """A virtual run: its steps, its time, and the fraction of the stages' time in which they computed nothing."""

    steps: int
    ns: int
    idle: float


def simulated(stages: int, requests: int, in_flight: int) -> Run:
    """Requests that arrive at once, with `in_flight` steps at most, 1 or as many as stages."""
    blocks = requests * (PROMPT_TOKENS + ANSWER_TOKENS) // 16 + 2 * requests
    cache = KVCacheManager(BlockPool(blocks))
    config = SchedulerConfig(max_running=requests, step_tokens=512, chunk_tokens=512, classes=(STANDARD,))
    scheduler = Scheduler(config, cache, 1024)
    scheduler.async_depth, scheduler.micro_batches = in_flight - 1, in_flight
    executor = FakeExecutor(blocks, stages=in_flight)
    for number in range(requests):
        prompt = [number] * PROMPT_TOKENS
        scheduler.add(make_request(f"r{number}", prompt, arrival=number, params=ANSWER))
    cost, device = StepCostModel.from_coefficients(H200_LLAMA_8B), Stages(stages)
    launched: deque[tuple[StepPlan, PendingStep, int]] = deque()
    now_ns = steps = 0
    while scheduler.has_work or launched:
        plan = scheduler.schedule(now_ns)
        if plan is not None:
            work = total(row_work(row.start, row.tokens) for row in plan.rows)
            launched.append((plan, executor.execute(plan), device.run(now_ns, cost.predict_ns(work))))
            steps += 1
        if plan is None or len(launched) == in_flight:
            finished, pending, ends_ns = launched.popleft()
            now_ns = ends_ns
            scheduler.commit(finished, pending.result())
    return Run(steps, now_ns, 1 - device.busy_ns / (stages * now_ns))


def show_simulated() -> None:
    print("virtual time: idle share of the stages, and tokens a second, with one step at a time and with one a stage")
    print(f"{'stages':>7}{'requests':>9}{'steps':>8}{'':>4}{'idle':>7}{'':>4}{'tokens/s':>10}{'':>6}{'gain':>6}")
    for stages in STAGES:
        for requests in REQUESTS:
            one, many = simulated(stages, requests, 1), simulated(stages, requests, stages)
            rates = [requests * ANSWER_TOKENS / run.ns * 1e9 for run in (one, many)]
            print(
                f"{stages:>7}{requests:>9}{one.steps:>6} {many.steps:>5}{one.idle:>6.1%} {many.idle:>6.1%}"
                f"{rates[0]:>8.0f} {rates[1]:>7.0f}{rates[1] / rates[0]:>7.2f}"
            )


def _load(folder: Path, requests: int) -> Engine:
    scheduler = SchedulerConfig(max_running=requests, step_tokens=256, chunk_tokens=128, classes=(STANDARD,))
    config = EngineConfig(
        device="cpu", dtype="float32", threads=1, kv_cache_bytes=256 << 20, ngram=False, scheduler=scheduler,
        pipeline_parallel=2,
    )  # fmt: skip
    return Engine.load({"smollm2": folder}, config)


def _tokens_s(engine: Engine, requests: int) -> tuple[float, list[tuple[int, ...]]]:
    prompts = [[100 + 7 * number + index for index in range(32)] for number in range(requests)]
    begun_s = time.monotonic()
    answers = [choice.token_ids for [choice] in engine.generate("smollm2", prompts, ANSWER)]
    return sum(map(len, answers)) / (time.monotonic() - begun_s), answers


def _one_at_a_time() -> None:
    """Engines that are loaded from now on have one step in flight."""
    from engine.execution.parallel.pipelined_runner import PipelinedRunner

    PipelinedRunner.async_depth = property(lambda _: 0)  # type: ignore[assignment]
    PipelinedRunner.micro_batches = property(lambda _: 1)  # type: ignore[assignment]


def show_real(rounds: int, requests: int) -> None:
    folder = fetch("smollm2", Settings().models_dir)
    many = _load(folder, requests)
    _one_at_a_time()
    one = _load(folder, requests)
    with one, many:
        many_s, one_s, equal = list[float](), list[float](), True
        for _ in range(rounds):
            rate, expected = _tokens_s(one, requests)
            one_s.append(rate)
            rate, answers = _tokens_s(many, requests)
            many_s.append(rate)
            equal &= answers == expected
    gains = [after / before for before, after in zip(one_s, many_s, strict=True)]
    print(
        f"SmolLM2, two processes of one thread, {requests} requests, {rounds} rounds: {statistics.median(one_s):.1f} "
        f"tokens/s with one step at a time, {statistics.median(many_s):.1f} with two; gain "
        f"{statistics.median(gains):.2f} (rounds {', '.join(f'{gain:.2f}' for gain in gains)}); "
        f"answers {'equal' if equal else 'DIFFER'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=16)
    options = parser.parse_args()
    show_simulated()
    if options.rounds:
        show_real(options.rounds, options.requests)


if __name__ == "__main__":
    main()
