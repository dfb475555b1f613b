"""Steps to attend in: rows over a paged KV in which everything that must not be read is NaN or out of range."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata
from kernels.triton.merging import arrival_counters
from kernels.triton.plan import TritonPlan
from kernels.weights import KVScales

FAR_AWAY = 2**30
"""A block id so far out of the pool that reading it cannot go unnoticed."""


@dataclass(frozen=True)
class Heads:
    kv: int = 2
    group: int = 2
    dim: int = 64


@dataclass(frozen=True)
class Step:
    query: Tensor
    kv_layer: Tensor
    metadata: AttentionMetadata


def make_step(
    query_lens: list[int],
    context_lens: list[int],
    heads: Heads,
    *,
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
    shared_blocks: int = 0,
    seed: int = 0,
) -> Step:
    """Rows with blocks in random order; the first `shared_blocks` belong to all rows.

    NaN: unowned blocks, slots past a context, and those that fell out of the window of all a row's tokens (unless
    they are shared). Out of range: entries of a block table past the context.
    """
    generator = torch.Generator().manual_seed(seed)
    counts = [math.ceil(context / BLOCK_TOKENS) for context in context_lens]
    pool = torch.randperm(shared_blocks + sum(counts) + 2, generator=generator)
    shared, free = pool[:shared_blocks], pool[shared_blocks:]
    tables = torch.full((len(counts), max(counts) + 1), FAR_AWAY)
    kv = torch.full((len(pool), BLOCK_TOKENS, 2, heads.kv, heads.dim), math.nan)
    kv[shared] = torch.randn(shared_blocks, *kv.shape[1:], generator=generator)
    for row, (tokens, context, count) in enumerate(zip(query_lens, context_lens, counts, strict=True)):
        tables[row, :count] = torch.cat((shared[:count], free))[:count]
        free = free[max(0, count - shared_blocks) :]
        visible = 0 if window is None else max(0, context - tokens + 1 - window)
        for position in range(max(visible, shared_blocks * BLOCK_TOKENS), context):
            block, offset = tables[row, position // BLOCK_TOKENS], position % BLOCK_TOKENS
            kv[block, offset] = torch.randn(kv.shape[2:], generator=generator)
    query = torch.randn(sum(query_lens), heads.kv * heads.group, heads.dim, generator=generator)
    metadata = AttentionMetadata(tables, query_lens, context_lens)
    return Step(query.to(dtype), kv.to(dtype), metadata)


@dataclass(frozen=True)
class Latents:
    """Query heads, rotated dimensions and those of the latent."""

    heads: int = 4
    rotated: int = 16
    rank: int = 32


def latent_step(lens: list[int], contexts: list[int], shape: Latents, dtype: torch.dtype, seed: int = 0) -> Step:
    """`make_step` over latents, which are keys and values in one."""
    step = make_step(lens, contexts, Heads(1, shape.heads, shape.rotated + shape.rank), dtype=dtype, seed=seed)
    return replace(step, kv_layer=step.kv_layer[:, :, :1].contiguous())


def in_mixed_blocks(step: Step) -> Step:
    """The step with its KV in a pool of mixed heads [1, N, numbers of a block], all of whose other numbers are NaN."""
    kv, numbers = step.kv_layer, step.kv_layer[0].numel()
    before, after = BLOCK_TOKENS * 2 * 48, BLOCK_TOKENS * 2 * 16
    pool = torch.full((1, len(kv), before + numbers + after), math.nan).to(kv.dtype)
    layer = pool[0, :, before : before + numbers].view(kv.shape)
    layer.copy_(kv)
    return Step(step.query, layer, step.metadata)


def only_row(step: Step, row: int) -> Step:
    """The same step with one of its rows alone."""
    lens = step.metadata.query_lens
    first = int(sum(lens[:row]))
    rows = slice(first, first + lens[row])
    metadata = AttentionMetadata(
        step.metadata.block_tables[row : row + 1], lens[row : row + 1], step.metadata.context_lens[row : row + 1]
    )
    return Step(step.query[rows].clone(), step.kv_layer, metadata)


def in_fp8(step: Step, scales: KVScales) -> tuple[Step, Step]:
    """The step with its KV in fp8 e4m3, and with what that stands for."""
    by_part = torch.tensor([scales.key, scales.value])[:, None, None]
    stored = (step.kv_layer.float() / by_part).to(torch.float8_e4m3fn)
    meant = (stored.float() * by_part).to(step.query.dtype)
    return Step(step.query, stored, step.metadata), Step(step.query, meant, step.metadata)


def with_room(plan: TritonPlan, splits: int, decode_queries: int, extend_tokens: int) -> TritonPlan:
    """The plan with memory for `splits` more of them, and other numbers of queries."""
    capacity = plan.split_capacity + splits
    return replace(
        plan,
        split_capacity=capacity,
        counters=arrival_counters(plan.decode_rows, capacity, plan.counters.device).zero_(),
        decode_queries=decode_queries,
        extend_tokens=extend_tokens,
    )
