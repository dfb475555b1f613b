"""Who is served when more is asked for than there is: `python -m benchmarks.fairness`.

Simulated: the real scheduler in virtual time, where a step takes what the cost model of Llama 3.1 8B in bf16 on one
H200 says (`engine/scheduling/cost.py`); no model runs. Prompts and answers are log-normal (seeded, sigma 0.6).

1. Premium's time to first token, alone and under a flood of standard requests that asks for four times what the
   engine can do; and under the same flood with both in one class, for comparison. Bound: p99 at most 1.2 times that
   alone. The price is in the last column: short steps and a small share for standard prefill while premium runs serve
   the flood less.
2. Two tenants of one class that always have requests waiting, one of which sends ten times as many: what each is
   served. Bound: 5 % apart.
3. The largest lead that one of the two ever gains, compared with the bound of VTC (arXiv 2401.00588).
"""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import PREMIUM, STANDARD, SamplingParams, ServiceClass
from engine.scheduling import Scheduler
from engine.scheduling.cost import H200_LLAMA_8B, StepCostModel
from engine.simulation import make_request
from engine.simulation.load import LoadReport, TimedRequest, run_load

SECONDS = 60
NUM_BLOCKS = 50_000
"""800,000 tokens of 128 KiB: the memory of an H200 that the weights leave."""
MAX_MODEL_LEN = 8192
CLASSES = (
    replace(PREMIUM, ttft_target_ms=80),  # steps of 20 ms at most
    replace(STANDARD, step_share=0.05),
)
PROMPT_TOKENS, ANSWER_TOKENS, SIGMA = 1000, 200, 0.6
PREMIUM_PER_S, FLOOD_FACTOR = 4.0, 4.0
TTFT_BOUND, FAIRNESS_BOUND = 1.2, 0.05


def make_scheduler(classes: tuple[ServiceClass, ...], num_blocks: int = NUM_BLOCKS) -> Scheduler:
    config = SchedulerConfig(max_running=256, step_tokens=2048, chunk_tokens=2048, classes=classes)
    model = StepCostModel.from_coefficients(H200_LLAMA_8B)
    return Scheduler(config, KVCacheManager(BlockPool(num_blocks)), MAX_MODEL_LEN, model)


def truth() -> StepCostModel:
    return StepCostModel.from_coefficients(H200_LLAMA_8B)


def poisson(
    rng: random.Random, name: str, service_class: ServiceClass, per_s: float, seconds: float
) -> list[TimedRequest]:
    """Requests of one tenant, at times of a Poisson process. Their arrival numbers are set when all are merged."""
    requests: list[TimedRequest] = []
    now_s = rng.expovariate(per_s)
    while now_s < seconds:
        lengths = (
            max(1, min(4000, round(rng.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA))))
            for mean in (PROMPT_TOKENS, ANSWER_TOKENS)
        )
        prompt, answer = lengths
        request = make_request(
            f"{name}-{len(requests)}",
            [rng.randrange(100_000)] * prompt,
            params=SamplingParams(max_tokens=answer, ignore_eos=True),
            tenant=name,
            salt=f"{name}-{len(requests)}".encode(),
            service_class=service_class,
        )
        requests.append(TimedRequest(round(now_s * 1e9), request))
        now_s += rng.expovariate(per_s)
    return requests


def merged(*streams: Sequence[TimedRequest]) -> list[TimedRequest]:
    timed = sorted((each for stream in streams for each in stream), key=lambda each: each.at_ns)
    for number, each in enumerate(timed):
        each.request.arrival = number
    return timed


def capacity_per_s() -> float:
    """Requests of the mix that the engine ends in a second when it always has work."""
    rng = random.Random(1)
    backlog = merged([TimedRequest(0, each.request) for each in poisson(rng, "all", CLASSES[1], 200, 20)])
    report = run_load(make_scheduler((CLASSES[1],)), truth(), backlog, until_ns=SECONDS * 10**9)
    return len(report.ttft_ns) / (report.elapsed_ns / 1e9)


def p99_ms(report: LoadReport) -> float:
    waits = [ns / 1e6 for name, ns in report.ttft_ns.items() if name.startswith("premium")]
    return statistics.quantiles(waits, n=100)[98]


def premium_under_flood(capacity: float) -> None:
    results: dict[str, float] = {}
    for name, classes, flood in (
        ("premium alone", CLASSES, False),
        ("with a standard flood", CLASSES, True),
        ("one class for all", (ServiceClass("one", 0),), True),
    ):
        rng = random.Random(2)
        premium = poisson(rng, "premium", classes[0], PREMIUM_PER_S, SECONDS)
        standard = poisson(rng, "flooder", classes[-1], FLOOD_FACTOR * capacity, SECONDS) if flood else []
        scheduler = make_scheduler(classes)
        report = run_load(scheduler, truth(), merged(premium, standard), until_ns=SECONDS * 10**9)
        results[name] = p99_ms(report)
        print(
            f"{name:24} TTFT p99 {results[name]:9.1f} ms   {len(report.ttft_ns):5} first tokens"
            f"   {report.served['flooder']:8} tokens of service to the flood"
        )
    ratio = results["with a standard flood"] / results["premium alone"]
    off = results["one class for all"] / results["premium alone"]
    print(f"ratio {ratio:.2f} (bound {TTFT_BOUND}); with classes off {off:.1f}")


def equal_tenants(capacity: float) -> None:
    rng = random.Random(3)
    much = poisson(rng, "much", STANDARD, 10 * capacity, SECONDS)
    little = poisson(rng, "little", STANDARD, capacity, SECONDS)
    report = run_load(
        make_scheduler((STANDARD,)), truth(), merged(much, little), until_ns=SECONDS * 10**9, rivals=("much", "little")
    )
    first, last = report.samples[0], report.samples[-1]
    gains = {tenant: last[tenant] - first[tenant] for tenant in last}
    leads = [sample["much"] - sample["little"] for sample in report.samples]
    longest = max(each.request.prompt_tokens for each in (*much, *little))
    bound = 2 * max(longest, 2 * NUM_BLOCKS * BLOCK_TOKENS)
    print(f"{len(much)} requests against {len(little)}; both wait in {len(report.samples)} of {report.steps} steps")
    print(f"served {gains}: ratio {gains['much'] / gains['little']:.3f} (bound 1 +- {FAIRNESS_BOUND})")
    print(f"largest swing of the lead {max(leads) - min(leads)}, VTC's bound {bound}")


def main() -> None:
    capacity = capacity_per_s()
    print(f"simulated, virtual time, an H200's cost model; capacity {capacity:.1f} requests/s of this mix")
    premium_under_flood(capacity)
    equal_tenants(capacity)


if __name__ == "__main__":
    main()
