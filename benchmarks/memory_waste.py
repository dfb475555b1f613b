"""How much KV memory is allocated and not used: `python -m benchmarks.memory_waste`.

Chat-like traffic through the real scheduler: prompts log-normal with a mean of 512 tokens, answers with a mean of
256 (sigma 1 of the logarithm, seeded), all different, measured as long as more requests wait than fit. In each step,
allocated is 16 tokens for every block in the table of a running request, used is the tokens whose KV is there when
the step ends. Waste is what is allocated and not used, summed over all steps, over what is allocated; steps stand
for time. Bound: 4 %.
"""

import math
import random

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import SamplingParams
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.simulation import make_request

REQUESTS = 1000
PROMPT_MEAN_TOKENS, ANSWER_MEAN_TOKENS, SIGMA = 512, 256, 1.0
NUM_BLOCKS = 3000
MAX_MODEL_LEN = 8192
CONFIG = SchedulerConfig(max_running=256, step_tokens=2048, chunk_tokens=512)
BOUND = 0.04


def log_normal(rng: random.Random, mean: float) -> int:
    """A length of at least one token; the mean of a log-normal is exp(mu + sigma**2 / 2)."""
    return max(1, round(rng.lognormvariate(math.log(mean) - SIGMA**2 / 2, SIGMA)))


def measure(seed: int) -> dict[str, float]:
    """Shares of the allocated KV memory, and the preemptions that it took to use the pool that fully."""
    rng = random.Random(seed)
    scheduler = Scheduler(CONFIG, KVCacheManager(BlockPool(NUM_BLOCKS)), MAX_MODEL_LEN)
    for number in range(REQUESTS):
        prompt = [number] * min(log_normal(rng, PROMPT_MEAN_TOKENS), MAX_MODEL_LEN - 1)
        params = SamplingParams(max_tokens=log_normal(rng, ANSWER_MEAN_TOKENS), ignore_eos=True)
        scheduler.add(make_request(str(number), prompt, arrival=number, params=params))

    allocated = known = used = pool = 0
    while scheduler.stats().waiting and (plan := scheduler.schedule()) is not None:
        for row in plan.rows:
            allocated += len(row.request.block_table) * BLOCK_TOKENS
            known += len(row.request.tokens)
            used += row.start + row.tokens
        pool += NUM_BLOCKS * BLOCK_TOKENS
        scheduler.commit(plan, StepResult(tuple(RowResult(1 if row.samples else None) for row in plan.rows)))
    return {
        "waste": 1 - used / allocated,
        "unfilled last blocks": 1 - known / allocated,
        "prompts not computed yet": (known - used) / allocated,
        "pool in use": allocated / pool,
        "preemptions a request": scheduler.stats().preemptions_total / REQUESTS,
    }


def main() -> None:
    print(
        f"{REQUESTS} requests, prompts of {PROMPT_MEAN_TOKENS} and answers of {ANSWER_MEAN_TOKENS} tokens on average "
        f"(log-normal), blocks of {BLOCK_TOKENS}, a pool of {NUM_BLOCKS}; time-averaged over steps"
    )
    for name, share in measure(seed=0).items():
        print(f"{name:26} {share:6.2%}" + (f"   bound {BOUND:.0%}" if name == "waste" else ""))


if __name__ == "__main__":
    main()
