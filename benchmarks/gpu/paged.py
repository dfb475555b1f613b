"""Steps to attend in: random queries, and rows over a paged KV in which all that must not be read is NaN."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata
from kernels.reference_int8 import from_int8, numbers_of, to_int8
from kernels.weights import KVScales


@dataclass(frozen=True, slots=True)
class Heads:
    """KV heads, query heads of each, and their dimension."""

    kv: int
    group: int
    dim: int

    def __str__(self) -> str:
        return f"{self.kv * self.group}/{self.kv} heads of {self.dim}"


@dataclass(frozen=True, slots=True)
class PagedStep:
    """query [T, Hq, D]; kv_layer [N, 16, 2, Hkv, D]; the metadata is on the device."""

    query: Tensor
    kv_layer: Tensor
    metadata: AttentionMetadata

    def only_row(self, row: int) -> "PagedStep":
        """The same step with one of its rows alone."""
        metadata = self.metadata
        first = int(metadata.query_lens[:row].sum())
        tokens = slice(first, first + int(metadata.query_lens[row]))
        alone = AttentionMetadata(
            metadata.block_tables[row : row + 1],
            metadata.query_lens[row : row + 1],
            metadata.context_lens[row : row + 1],
        )
        return PagedStep(self.query[tokens].clone(), self.kv_layer, alone)

    def in_mixed_blocks(self) -> "PagedStep":
        """The same step with its KV as a layer of a pool of mixed heads, whose other numbers are NaN."""
        kv, size = self.kv_layer, self.kv_layer[0].numel()
        pool = torch.full((1, len(kv), 3 * size), math.nan, device=kv.device).to(kv.dtype)
        layer = pool[0, :, size : 2 * size].view(kv.shape)
        layer.copy_(kv)
        return PagedStep(self.query, layer, self.metadata)


def make_step(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    heads: Heads,
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    window: int | None = None,
) -> PagedStep:
    """Rows with blocks in random order.

    NaN: slots past a context, those that fell out of the window of all a row's tokens, and an unowned block, which
    is what entries of a block table past its row's context name.
    """
    device = generator.device
    counts = [math.ceil(context / BLOCK_TOKENS) for context in context_lens]
    order = torch.randperm(sum(counts) + 1, generator=generator, device=device)
    tables = order[-1].repeat(len(counts), max(counts) + 1)
    kv = torch.full((len(order), BLOCK_TOKENS, 2, heads.kv, heads.dim), math.nan, dtype=dtype, device=device)
    slots = kv.flatten(0, 1)
    first = 0
    for row, (tokens, context, count) in enumerate(zip(query_lens, context_lens, counts, strict=True)):
        tables[row, :count] = order[first : first + count]
        first += count
        visible = 0 if window is None else max(0, context - tokens + 1 - window)
        position = torch.arange(visible, context, device=device)
        written = tables[row, position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
        slots[written] = _normal((len(position), 2, heads.kv, heads.dim), dtype, generator)
    query = _normal((sum(query_lens), heads.kv * heads.group, heads.dim), dtype, generator)
    return PagedStep(query, kv, AttentionMetadata(tables, query_lens, context_lens))


def in_fp8(step: PagedStep, scales: KVScales) -> tuple[PagedStep, PagedStep]:
    """The step with its KV in fp8 e4m3, and with what that stands for, in float32."""
    by_part = torch.tensor([scales.key, scales.value], device=step.kv_layer.device)[:, None, None]
    stored = (step.kv_layer.float() / by_part).to(torch.float8_e4m3fn)
    return PagedStep(step.query, stored, step.metadata), PagedStep(step.query, stored.float() * by_part, step.metadata)


def in_int8(step: PagedStep) -> tuple[PagedStep, PagedStep]:
    """The step with its KV in int8, where what is not to be read has a NaN as its scale; and with what that stands for,
    in float32."""
    blocks, heads = to_int8(step.kv_layer.bfloat16()), step.kv_layer.shape[-2:]
    stored = PagedStep(step.query, numbers_of(blocks, *heads), step.metadata)
    return stored, PagedStep(step.query, from_int8(blocks, *heads), step.metadata)


def _normal(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device).to(dtype)
