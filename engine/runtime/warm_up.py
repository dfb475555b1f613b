"""Short requests that a model computes before the first client's."""

import time
from collections.abc import Callable, Sequence

from engine.config import EngineConfig
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.request import Request, SamplingParams
from engine.scheduling.cost import StepCostModel
from engine.scheduling.plan import Executor
from engine.scheduling.scheduler import Scheduler
from engine.speculation.policy import FixedDepth, SpeculationLoad
from engine.speculation.proposer import Proposer
from engine.speculation.speculator import Speculator

_PROMPT_TOKENS = 24
_TOKENS = 4


def warm_up(
    runner: Executor,
    proposers: Sequence[Proposer],
    new_cache: Callable[[BlockPool], KVCacheManager],
    num_blocks: int,
    config: EngineConfig,
    served: Scheduler,
) -> None:
    """Run two short requests through schedulers of their own, so that the first client does not pay for lazy
    initialisation. `new_cache`: of the model's KV, without a prefix cache, over a pool of its `num_blocks`.

    The first one warms up; the `served` scheduler's cost model learns this machine's step times from the second one.
    """
    pool = BlockPool(num_blocks)
    for cost_model in (StepCostModel(), served.cost_model):
        scheduler = Scheduler(config.scheduler, new_cache(pool), served.window_tokens, cost_model)
        _run_short_request(scheduler, runner, Speculator(proposers, FixedDepth(config.draft_depth)), config)


def _run_short_request(scheduler: Scheduler, runner: Executor, speculator: Speculator, config: EngineConfig) -> None:
    prompt = [0] * max(1, min(_PROMPT_TOKENS, scheduler.window_tokens - _TOKENS))
    scheduler.add(
        Request(
            id="warm-up",
            tokens=prompt,
            prompt_tokens=len(prompt),
            params=SamplingParams(),
            seed=0,
            max_tokens=_TOKENS,
            eos_token_ids=(),
            arrival=0,
            service_class=config.scheduler.classes[0],
        )
    )
    no_load = SpeculationLoad(0, 0, 0)
    while True:
        plan = scheduler.schedule(draft=lambda room: speculator.propose(room, no_load).drafts)
        if plan is None:
            return
        begun_ns = time.monotonic_ns()
        result = runner.execute(plan).result()
        scheduler.commit(plan, result, elapsed_ns=time.monotonic_ns() - begun_ns)
