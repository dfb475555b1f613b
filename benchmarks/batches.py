"""Batches that fill what interactive requests leave: `python -m benchmarks.batches`, in virtual time.

The scheduler is the real one with the default classes; the device is a cost model, of Llama 3.1 8B on one H200.
Saturated: a closed loop of standard requests with twice as many as there are slots. Interactive: premium and standard
requests in equal parts, by a Poisson process at 30 % of the saturated rate. With batches: the same arrivals, and a
backlog of batch lines that never ends. Compared are the interactive requests' times to first token with and without
batches, with the same arrivals, and the tokens of prompts and answers a second with those of saturation.

Bounds: total throughput at least 0.95 of saturated, and p99 of the time to first token at most 1.1 times that without
batches. Virtual time makes all figures reproducible: equal seeds give equal output.
"""

import argparse
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.traffic import percentile
from engine import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import BATCH, PREMIUM, STANDARD, Request, SamplingParams, ServiceClass
from engine.scheduling import RowResult, Scheduler, StepPlan, StepResult
from engine.scheduling.cost import H200_LLAMA_8B, StepCostModel, step_work
from gateway.tools.bench.lengths import LogNormal

MIN_THROUGHPUT = 0.95
MAX_TTFT = 1.1
SLOTS = 128
STEP_TOKENS = 2048
NUM_BLOCKS = 32_768
MAX_MODEL_LEN = 8192
LOAD = 0.3
_S = 1_000_000_000
_PROMPT = LogNormal(512, 1.0, 16, 6000)
_ANSWER = LogNormal(192, 0.8, 8, 1000)


@dataclass(slots=True)
class Outcome:
    """`ttft_ms`: of interactive requests that arrived after the warm-up, by class. `tokens`: of prompts and answers,
    computed after it, in `seconds`."""

    ttft_ms: dict[str, list[float]] = field(default_factory=lambda: {PREMIUM.name: [], STANDARD.name: []})
    tokens: int = 0
    requests: int = 0
    seconds: float = 0.0
    preemptions: int = 0

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


class Lengths:
    """Draws requests. Each generator has its own, so that the arrivals of one kind do not depend on the others."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._count = 0

    def request(self, service_class: ServiceClass, arrival: int) -> Request:
        self._count += 1
        tokens = [self._rng.randrange(16, 100_000) for _ in range(_PROMPT.draw(self._rng))]
        return Request(
            id=f"{service_class.name}-{self._count}",
            tokens=tokens,
            prompt_tokens=len(tokens),
            params=SamplingParams(temperature=0, ignore_eos=True),
            seed=arrival,
            max_tokens=_ANSWER.draw(self._rng),
            eos_token_ids=(),
            arrival=arrival,
            service_class=service_class,
            tenant=service_class.name,
        )


def run(seed: int, warm_s: float, seconds: float, *, rate: float = 0.0, backlog: ServiceClass | None = None) -> Outcome:
    """`rate`: interactive requests a second. `backlog`: a class with twice as many requests as slots under way."""
    config = SchedulerConfig(
        max_running=SLOTS,
        step_tokens=STEP_TOKENS,
        chunk_tokens=STEP_TOKENS,
        classes=(PREMIUM, STANDARD, BATCH),
    )
    scheduler = Scheduler(config, KVCacheManager(BlockPool(NUM_BLOCKS)), MAX_MODEL_LEN)
    device = StepCostModel.from_coefficients(H200_LLAMA_8B)
    arrivals, end_ns, begin_ns = _arrivals(seed, rate, warm_s + seconds), (warm_s + seconds) * _S, warm_s * _S
    interactive, lines = Lengths(f"interactive {seed}"), Lengths(f"backlog {seed}")
    outcome, now_ns, added, under_way = Outcome(), 0, 0, 0
    arrived_ns: dict[str, int] = {}
    while now_ns < end_ns:
        while arrivals and arrivals[0] <= now_ns:
            arrived = arrivals.popleft()
            request = interactive.request((PREMIUM, STANDARD)[added % 2], added := added + 1)
            arrived_ns[request.id] = arrived
            scheduler.add(request, now_ns)
        while backlog is not None and under_way < 2 * SLOTS:
            scheduler.add(lines.request(backlog, added := added + 1), now_ns)
            under_way += 1
        plan = scheduler.schedule(now_ns, limits=scheduler.step_limits(now_ns))
        if plan is None:
            now_ns = arrivals[0] if arrivals else int(end_ns)
            continue
        step_ns, result = _compute(device, plan)
        now_ns += step_ns
        # Repeated work is no throughput.
        computed = sum(
            max(0, row.start + row.tokens - max(row.start, row.request.high_water_tokens)) for row in plan.rows
        )
        for delta in scheduler.commit(plan, result, elapsed_ns=step_ns):
            if delta.request_id in arrived_ns and delta.token_ids:
                came_ns = arrived_ns.pop(delta.request_id)
                if came_ns >= begin_ns:
                    outcome.ttft_ms[delta.request_id.partition("-")[0]].append((now_ns - came_ns) / 1e6)
            if delta.finish_reason is not None:
                under_way -= backlog is not None and delta.request_id.startswith(f"{backlog.name}-")
                outcome.requests += now_ns >= begin_ns
        if now_ns >= begin_ns:
            outcome.tokens += computed
    outcome.seconds, outcome.preemptions = seconds, scheduler.stats().preemptions_total
    return outcome


def _arrivals(seed: int, rate: float, seconds: float) -> deque[int]:
    rng, at_s, arrivals = random.Random(f"arrivals {seed}"), 0.0, deque[int]()
    while rate and (at_s := at_s + rng.expovariate(rate)) < seconds:
        arrivals.append(int(at_s * _S))
    return arrivals


def _compute(device: StepCostModel, plan: StepPlan) -> tuple[int, StepResult]:
    work = step_work([row.start for row in plan.rows], [row.tokens for row in plan.rows])
    return device.predict_ns(work), StepResult(tuple(RowResult(token=1 if row.samples else None) for row in plan.rows))


def _figures(values: Sequence[float]) -> str:
    return "  ".join(f"p{share} {percentile(list(values), share / 100):.1f} ms" for share in (50, 95, 99))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=120.0, help="virtual seconds of each run")
    parser.add_argument("--warm", type=float, default=20.0, help="virtual seconds before them")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    span = (options.seed, options.warm, options.seconds)
    saturated = run(*span, backlog=STANDARD)
    rate = LOAD * saturated.requests / saturated.seconds
    print(f"Llama 3.1 8B on one H200 by its cost model, {SLOTS} slots, {options.seconds:.0f} s of virtual time")
    print(f"saturated: {saturated.rate:.0f} tokens/s, {saturated.requests / saturated.seconds:.1f} requests/s")
    alone = run(*span, rate=rate)
    together = run(*span, rate=rate, backlog=BATCH)
    print(f"interactive alone, {rate:.1f} requests/s: {alone.rate / saturated.rate:.3f} of saturated")
    throughput = together.rate / saturated.rate
    print(
        f"with batches: {throughput:.3f} of saturated (at least {MIN_THROUGHPUT}), {together.preemptions} preemptions"
    )
    for name in (PREMIUM.name, STANDARD.name):
        without, filled = alone.ttft_ms[name], together.ttft_ms[name]
        print(f"  {name}: TTFT {_figures(without)} (n = {len(without)})")
        ratio = percentile(filled, 0.99) / percentile(without, 0.99)
        print(f"  {name}, with batches: {_figures(filled)}; p99 {ratio:.3f} of that without (at most {MAX_TTFT})")


if __name__ == "__main__":
    main()
