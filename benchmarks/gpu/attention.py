"""How near attention is to the device's limits: decode in bytes of KV a second, extend in operations a second.

A set of inputs is larger than the cache, or there are enough sets to exceed it together; they take turns.
"""

from collections.abc import Callable
from functools import partial
from math import ceil

import torch

from benchmarks.gpu import names
from benchmarks.gpu.paged import Heads
from benchmarks.gpu.stage import Stage
from benchmarks.gpu.timing import median_ms, replayed_ms
from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata
from kernels.triton.attention import attend
from kernels.triton.plan import TritonPlan, plan_from_metadata

_MOST_SETS = 128


def run(stage: Stage) -> None:
    scale = stage.scale
    for context in scale.decode_contexts:
        for batch in scale.decode_batches:
            name = names.decode(batch, context)
            if kv_bytes(batch, context, scale.attention_heads) > scale.kv_bytes:
                stage.skipped(name, f"more than {scale.kv_bytes / 2**30:.0f} GiB of KV")
                continue
            stage.attempt(name, partial(_decode, stage, name, batch, context))
    for tokens in scale.extend_tokens:
        for earlier in (0, scale.extend_tokens[-1]):
            name = names.extend(tokens, earlier)
            stage.attempt(name, partial(_extend, stage, name, tokens, earlier))


def kv_bytes(batch: int, context: int, heads: Heads) -> int:
    """Bytes of K and V that a layer's attention reads, in 16 bits."""
    return batch * context * 2 * heads.kv * heads.dim * 2


def _decode(stage: Stage, name: str, batch: int, context: int) -> None:
    milliseconds = replayed_ms(decode_works(stage, batch, context), stage.device, stage.scale.repeats)
    bytes_read = kv_bytes(batch, context, stage.scale.attention_heads)
    stage.measured(name, bytes_read / milliseconds / 1e6, "GB/s", f"{milliseconds * 1e3:.1f} us a layer")


def _extend(stage: Stage, name: str, tokens: int, earlier: int) -> None:
    rows = max(1, stage.scale.extend_tokens[-1] // tokens)
    milliseconds = median_ms(extend_works(stage, rows, tokens, earlier), stage.device, stage.scale.repeats)
    rate = extend_flop(rows, tokens, earlier, stage.scale.attention_heads) / milliseconds / 1e9
    stage.measured(name, rate, "TFLOP/s", f"{rows} rows, {milliseconds:.2f} ms a layer")


def extend_flop(rows: int, tokens: int, earlier: int, heads: Heads) -> int:
    """Two products of a multiplication and an addition each, over the keys that each token sees."""
    seen = tokens * earlier + tokens * (tokens + 1) // 2
    return rows * 4 * heads.kv * heads.group * heads.dim * seen


def decode_works(stage: Stage, batch: int, context: int) -> list[Callable[[], object]]:
    """A decode step's attention in one layer after another, each with KV of its own."""
    heads = stage.scale.attention_heads
    sets = min(_MOST_SETS, ceil(stage.scale.rotated_bytes / kv_bytes(batch, context, heads)))
    return _works(stage, sets, [1] * batch, [context] * batch, heads)


def extend_works(stage: Stage, rows: int, tokens: int, earlier: int) -> list[Callable[[], object]]:
    return _works(stage, 2, [tokens] * rows, [earlier + tokens] * rows, stage.scale.attention_heads)


def _works(
    stage: Stage, layers: int, query_lens: list[int], context_lens: list[int], heads: Heads
) -> list[Callable[[], object]]:
    dtype, device = stage.scale.dtypes[0], stage.device
    counts = [ceil(context / BLOCK_TOKENS) for context in context_lens]
    num_blocks = sum(counts)
    kv = torch.empty((layers, num_blocks, BLOCK_TOKENS, 2, heads.kv, heads.dim), dtype=dtype, device=device)
    queries = torch.empty((layers, sum(query_lens), heads.kv * heads.group, heads.dim), dtype=dtype, device=device)
    for layer in range(layers):
        kv[layer].normal_(generator=stage.generator)
        queries[layer].normal_(generator=stage.generator)
    # All rows of a measurement are alike, so that their tables are one.
    tables = torch.randperm(num_blocks, generator=stage.generator, device=device).view(len(counts), counts[0])
    metadata = AttentionMetadata(tables, query_lens, context_lens)
    plan: TritonPlan = plan_from_metadata(metadata, device)
    return [partial(attend, queries[layer], kv[layer], plan, None) for layer in range(layers)]
