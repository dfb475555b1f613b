"""A process that loads two models and asks for all that the engine does; prints which of torch's modules it has."""

import asyncio
import sys

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.request import Pooling
from engine.runtime import model_loading
from engine.speculation.policy import FixedDepth
from kernels.cpu.native.library import load

PROMPT = [*range(10, 40), *range(10, 30)]
ANSWERS = (
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(
        temperature=0.9,
        top_p=0.9,
        seed=3,
        n=2,
        max_tokens=12,
        min_tokens=8,
        logprobs=3,
        prompt_logprobs=2,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
        logit_bias={5: 2.0},
    ),
    SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, allowed_token_ids=frozenset({7, 8})),
)


async def embed(engine: Engine, pooling: Pooling) -> bytes:
    params = SamplingParams(max_tokens=0, pooling=pooling)
    return b"".join([delta.embedding async for delta in engine.stream("large", PROMPT, params)])


def main(folder: str) -> None:
    # On a tiny model drafts never pay, and which are tried at all depends on how long steps take.
    model_loading.DepthController = lambda *_, max_depth, below: FixedDepth(max_depth)  # type: ignore
    config = EngineConfig(
        device="cpu",
        threads=2,
        kv_cache_bytes=4 << 20,
        ngram=True,
        drafts={"large": "small"},
        scheduler=SchedulerConfig(max_running=4, step_tokens=64),
    )
    with Engine.load({"large": folder, "small": folder}, config) as engine:
        for params in ANSWERS:
            for [answer, *_] in engine.generate("large", [PROMPT, PROMPT[:20]], params):
                assert answer.token_ids
        for pooling in Pooling:
            assert asyncio.run(embed(engine, pooling))
        speculation = engine.stats()["large"].speculation
    assert speculation is not None
    assert {each.proposer for each in speculation.drafts} == {"ngram", "draft"}
    print([name for name in sys.modules if name.partition(".")[0] == "torch"])


if __name__ == "__main__":
    assert load() is not None, "the native library is not built"
    main(sys.argv[1])
