"""What having classes costs traffic of one class: `python -m benchmarks.class_cost`.

Throughput with the default classes configured, all requests of one of them, over that with a single class; bound: at
least 0.98. SmolLM2-135M, steps driven on one thread, without an event loop between them: what differs is the scheduler.
One set of weights and one KV memory serve both, so that neither has the better place in memory. The two take turns
(ABBA...) on the same requests; each pair of neighbours gives a ratio, and the figure is their median, with an interval
from resampling the pairs.

Standard is measured where its requests fit what the reserve leaves it, and, as "saturated", where more are under way
than there are slots: there the slots reserved for premium, which nobody holds, are the price.
"""

import argparse
import gc
import time
from collections import deque
from dataclasses import dataclass

from benchmarks.intervals import bootstrap_median
from benchmarks.traffic import Job, make_jobs
from engine import EngineConfig, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.models.catalog import fetch
from engine.request import PREMIUM, STANDARD, Request, SamplingParams, ServiceClass
from engine.scheduling import Scheduler
from engine.worker import LoadedModel, load
from gateway.settings import Settings
from kernels.dispatch import select_ops

BOUND = 0.98
KV_BYTES = 512 << 20
MAX_MODEL_LEN = 2048
LENGTHS = 0.35
"""Of prompts and answers, so that a run takes seconds: what is compared are many short ones."""
ONE_CLASS = ServiceClass("one", 0)


@dataclass(frozen=True, slots=True)
class Case:
    """`requests` in a run, `under_way` at a time, each started when another ends."""

    name: str
    service_class: ServiceClass
    under_way: int
    requests: int


CASES = (
    Case("premium alone", PREMIUM, 24, 72),
    Case("standard alone", STANDARD, 24, 72),
    Case("standard alone, saturated", STANDARD, 72, 144),
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


def tokens_per_s(model: LoadedModel, config: SchedulerConfig, requests: list[Request], under_way: int) -> float:
    """Output tokens a second, until all requests are done."""
    num_blocks = model.scheduler.stats().num_blocks
    scheduler = Scheduler(config, KVCacheManager(BlockPool(num_blocks)), MAX_MODEL_LEN)
    pending = deque(requests)
    gc.collect()
    started = time.perf_counter()
    for _ in range(min(under_way, len(pending))):
        scheduler.add(pending.popleft(), time.monotonic_ns())
    while True:
        now_ns = time.monotonic_ns()
        plan = scheduler.schedule(now_ns, guard=scheduler.step_guard(now_ns))
        if plan is None:
            break
        began_ns = time.monotonic_ns()
        result = model.runner.execute(plan).result()
        deltas = scheduler.commit(plan, result, elapsed_ns=time.monotonic_ns() - began_ns)
        for delta in deltas:
            if delta.finish_reason is not None and pending:
                scheduler.add(pending.popleft(), time.monotonic_ns())
    seconds = time.perf_counter() - started
    assert not scheduler.has_work
    return sum(request.output_tokens for request in requests) / seconds


def measure(model: LoadedModel, case: Case, pairs: int) -> None:
    on, off = SchedulerConfig(), SchedulerConfig(classes=(ONE_CLASS,))
    vocab_size, count = model.served.vocab_size, case.requests

    def run(config: SchedulerConfig, service_class: ServiceClass, seed: int) -> float:
        jobs = make_jobs(count, vocab_size, seed=seed, scale=LENGTHS)
        return tokens_per_s(model, config, requests_of(jobs, service_class), case.under_way)

    run(on, case.service_class, seed=0)
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
        f"   (classes off: {bootstrap_median(rates):.0f} tok/s; {pairs} pairs of {count} requests)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    ops = select_ops(None, None)
    config = EngineConfig(kv_cache_bytes=KV_BYTES, max_model_len=MAX_MODEL_LEN)
    model = load("model", fetch("smollm2", Settings().models_dir), ops, config, 1.0, None)
    print(f"SmolLM2-135M, {config.scheduler.max_running} slots; output tok/s, classes on over off (at least {BOUND})")
    for case in CASES:
        measure(model, case, options.pairs)


if __name__ == "__main__":
    main()
