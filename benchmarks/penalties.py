"""Cost of penalties and biases in the sampling of a decode step.

`python -m benchmarks.penalties`. A vocabulary of 128,256; prompts of Pareto-distributed token ids, as text has them.
Each step every row gets a token. Milliseconds a step of `Sampler.sample` and the counting before it, the least of some.
"""

import random
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from engine.execution.sampler import Draw, Sampler
from engine.execution.slots import SlotTable
from engine.request import STANDARD, Request, SamplingParams
from engine.scheduling.plan import ScheduledRow
from kernels.dispatch import select_ops

VOCAB = 128_256
SHAPES = ((1, 32_000), (16, 8_000), (64, 8_000), (64, 32_000))
STEPS = 9
BIASES = 1000

KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "repetition": {"repetition_penalty": 1.1},
    "frequency": {"frequency_penalty": 0.2},
    "biases": {"logit_bias": MappingProxyType({token * 100: 1.0 for token in range(BIASES)})},
}


def step_ms(rows: int, prompt: int, params: SamplingParams) -> float:
    ops = select_ops("bfloat16", 2, "cpu", "auto")
    slots = SlotTable(rows, 131_072, VOCAB)
    sampler, rng = Sampler(ops, slots, VOCAB), random.Random(1)
    requests = []
    for index in range(rows):
        request = Request(
            id=str(index),
            tokens=[min(int(rng.paretovariate(0.35)), VOCAB - 1) for _ in range(prompt)],
            prompt_tokens=prompt,
            params=params,
            seed=index,
            max_tokens=100,
            eos_token_ids=(1,),
            arrival=index,
            service_class=STANDARD,
        )
        request.slot, request.admissions, request.block_table = index, 1, list(range(-(-prompt // 16) + 1))
        slots.update(ScheduledRow(request, prompt - 1, 1, True, ()))
        requests.append(request)
    draws = [Draw(request) for request in requests]
    logits = np.random.default_rng(0).standard_normal((rows, VOCAB)).astype(np.float32) * 3
    took = []
    for _ in range(STEPS):
        overwritten = logits.copy()
        started = time.perf_counter()
        slots.count_tokens(requests)
        drawn = sampler.sample(overwritten, draws)
        took.append(1e3 * (time.perf_counter() - started))
        for request, token in zip(requests, drawn.tokens, strict=True):
            request.tokens.append(token)
    return min(took)


def main() -> None:
    print(f"{'rows':>4} {'prompt':>7} " + " ".join(f"{kind:>12}" for kind in KINDS))
    for rows, prompt in SHAPES:
        took = [step_ms(rows, prompt, SamplingParams(temperature=0.8, **each)) for each in KINDS.values()]
        print(f"{rows:4} {prompt:7} " + " ".join(f"{ms:12.1f}" for ms in took), flush=True)


if __name__ == "__main__":
    main()
