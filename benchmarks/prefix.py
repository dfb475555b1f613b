"""Savings of a prefix hit: TTFT of a second request with the same first tokens: `python -m benchmarks.prefix`."""

import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.checkpoints import half_billion
from engine import Engine, EngineConfig, SamplingParams

PREFIX_TOKENS = 512
OWN_TOKENS = 16
ROUNDS = 7


async def _ttft_ms(engine: Engine, prompt: list[int]) -> float:
    started = time.perf_counter()
    first = 0.0
    async for delta in engine.stream("model", prompt, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)):
        if delta.token_ids:
            first = first or time.perf_counter()
    return (first - started) * 1e3


def main() -> None:
    rng = random.Random(0)
    first_ms, second_ms = [], []
    with tempfile.TemporaryDirectory() as root:
        engine = Engine.load({"model": half_billion(Path(root))}, EngineConfig(dtype="bfloat16"))
        with engine:
            for _ in range(ROUNDS):
                prefix, one, two = (
                    [rng.randrange(16, 32_000) for _ in range(length)]
                    for length in (PREFIX_TOKENS, OWN_TOKENS, OWN_TOKENS)
                )
                first_ms.append(asyncio.run(_ttft_ms(engine, prefix + one)))
                second_ms.append(asyncio.run(_ttft_ms(engine, prefix + two)))
    first, second = statistics.median(first_ms), statistics.median(second_ms)
    print(f"{PREFIX_TOKENS} shared tokens and {OWN_TOKENS} of its own, 0.5 B, bf16, median of {ROUNDS}:")
    print(
        f"  TTFT of the first {first:.0f} ms, of the second {second:.0f} ms: {second / first:.3f} of it (at most 0.25)"
    )


if __name__ == "__main__":
    main()
