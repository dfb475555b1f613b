"""The KV memory of a long context in a model with sliding windows: `python -m benchmarks.window_memory`.

One request through the real scheduler, with the layers of Gemma 3 4B (5 full, 29 with a window of 1024 tokens) in the
groups that the engine makes of them. Held: the blocks of the request times the layers of a block, as a share of what
it holds where all layers are one group and keep their blocks. At the end of the prompt's prefill the share is the
largest since its first chunk; then the context grows by an answer.
"""

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.models.kv_groups import group_layers
from engine.request import SamplingParams
from engine.scheduling import RowResult, Scheduler, StepResult
from engine.simulation import make_request

LAYERS = tuple(None if layer % 6 == 5 else 1024 for layer in range(34))
CONTEXTS = (512, 2048, 8192, 32_768, 131_072)
ANSWER_TOKENS = 64
CONFIG = SchedulerConfig(max_running=1, step_tokens=2048, chunk_tokens=512)


def held_shares(context: int) -> tuple[float, float]:
    """The largest share held during prefill, and the share at the end of the answer."""
    groups = group_layers(LAYERS, max(CONTEXTS))
    each = len(groups.windows)
    num_blocks = 2 * each * (context + ANSWER_TOKENS) // BLOCK_TOKENS
    pool = BlockPool(num_blocks)
    scheduler = Scheduler(CONFIG, KVCacheManager(pool, windows=groups.windows[1:]), 2 * max(CONTEXTS))
    params = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True)
    request = make_request("r", [0] * context, params=params)
    scheduler.add(request)
    largest = last = 0.0
    while (plan := scheduler.schedule()) is not None or scheduler.has_work:
        if plan is None:
            continue
        if request.block_table:
            kept = len(request.block_table) * len(LAYERS)
            last = (pool.num_blocks - pool.free_blocks) * groups.layers / kept
        if request.output_tokens == 0:
            largest = max(largest, last)
        scheduler.commit(plan, StepResult(tuple(RowResult(1 if row.samples else None) for row in plan.rows)))
    return largest, last


def main() -> None:
    print("KV memory of one request with released windows, over that without: Gemma 3 4B")
    for context in CONTEXTS:
        prefill, decode = held_shares(context)
        print(f"{context:8} tokens of context: {prefill:6.1%} at most in prefill, {decode:6.1%} in decode")


if __name__ == "__main__":
    main()
