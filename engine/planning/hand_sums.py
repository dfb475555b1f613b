"""The arithmetic of a deployment step by step, as people do it by hand."""

from engine.config import BLOCK_TOKENS
from engine.models.config import ModelConfig
from engine.planning.deployment import Deployment
from engine.planning.model_sums import ModelSums, Placement
from engine.planning.origin import Figure, Origin, weakest
from engine.planning.search import replica_rate
from engine.planning.step_features import StepFeatures
from engine.planning.traffic import MeanLengths

_GIB = 2**30


def memory_sums(config: ModelConfig, sums: ModelSums, placement: Placement, memory_origin: Origin) -> list[Figure]:
    """From the model's shape to the tokens that a replica holds."""
    heads = config.heads_of(0)
    same = len(set(config.kv_heads)) == 1
    number_bytes = sums.kv_token_bytes / sum(each.kv_numbers for each in config.kv_heads)
    shape = (
        f"{len(config.kv_heads)} layers x {heads.kinds} x {heads.kv_heads} heads x {heads.dim} x "
        f"{number_bytes:.4g} bytes"
        if same
        else f"the sum over {len(config.kv_heads)} layers of different heads, x {number_bytes:.4g} bytes"
    )
    pool, ranks = placement.pool, placement.tensor_parallel
    groups = len(placement.groups.windows)
    of_groups = f" / {groups} groups of layers" if groups > 1 else ""
    of_ranks = f" / {ranks} devices" if ranks > 1 else ""
    held = pool.num_blocks * pool.block_bytes
    return [
        Figure("weights", sums.weight_bytes / _GIB, "GiB", Origin.COMPUTED, f"{sums.weights:,} numbers"),
        Figure("KV of a token", sums.kv_token_bytes, "bytes", Origin.COMPUTED, shape),
        Figure(
            "a block",
            pool.block_bytes,
            "bytes",
            Origin.COMPUTED,
            f"{BLOCK_TOKENS} tokens x {sums.kv_token_bytes:,.0f} bytes{of_groups}{of_ranks}",
        ),
        Figure("KV memory", pool.budget.kv_bytes / _GIB, "GiB a device", memory_origin, pool.budget.reason),
        Figure(
            "blocks",
            pool.num_blocks,
            "a replica",
            memory_origin,
            f"{pool.budget.kv_bytes:,} / {pool.block_bytes:,} bytes, at most {placement.max_running} sequences of "
            f"{placement.window:,} tokens; {held / _GIB:.2f} GiB",
        ),
        Figure("tokens", pool.tokens, "a replica", memory_origin, f"blocks{of_groups} x {BLOCK_TOKENS}"),
    ]


def concurrency_sums(deployment: Deployment, lengths: MeanLengths, memory_origin: Origin) -> list[Figure]:
    """Requests at once, and tokens per second with continuous and with static batching."""
    times = deployment.times
    context = lengths.prompt + lengths.answer
    blocks = deployment.num_blocks
    by_memory = blocks / deployment.sequence_blocks(context)
    _, running = replica_rate(deployment, lengths)
    origin = weakest(memory_origin, times.origin)
    continuous = _tokens_s(deployment, lengths)
    longest = _LONGEST * lengths.answer
    longest_blocks = deployment.sequence_blocks(lengths.prompt + longest)
    static_slots = max(min(deployment.max_running, int(blocks / longest_blocks)), 1)
    static = _static_tokens_s(deployment, lengths, static_slots, longest)
    return [
        Figure(
            "concurrency by memory",
            by_memory,
            "requests",
            memory_origin,
            f"{blocks:,} blocks / {deployment.sequence_blocks(context):,.1f} of a mean request of "
            f"{lengths.prompt:.0f} + {lengths.answer:.0f} tokens",
        ),
        Figure("concurrency", running, "requests", memory_origin, f"at most {deployment.max_running} slots"),
        Figure(
            "continuous batching",
            continuous,
            "answer tokens/s",
            origin,
            f"{running} requests in every step, each replaced when it ends",
        ),
        Figure(
            "static batching",
            static,
            "answer tokens/s",
            origin,
            f"{static_slots} requests together until the longest has its {longest:.0f} tokens, memory reserved for it",
        ),
        Figure(
            "continuous over static", continuous / static, "x", origin, "8 to 23 x in the literature (Anyscale 2023)"
        ),
    ]


_LONGEST = 4.0
"""The longest answer of a batch, in multiples of the mean: where `Lengths` cuts it."""


def _tokens_s(deployment: Deployment, lengths: MeanLengths) -> float:
    return replica_rate(deployment, lengths)[0] * lengths.answer


def _static_tokens_s(deployment: Deployment, lengths: MeanLengths, slots: int, longest: float) -> float:
    """A batch computes its prompts, then a token of each row, ended or not, until the longest answer has ended."""
    times = deployment.times
    prefill_ns = slots * times.predict_ns(
        StepFeatures(int(lengths.prompt), int(lengths.prompt * lengths.prompt / 2), 0, 0)
    )
    context = slots * (lengths.prompt + longest / 2)
    decode_ns = longest * times.predict_ns(StepFeatures(0, 0, slots, int(context)))
    return 1e9 * slots * lengths.answer / (prefill_ns + decode_ns)
