"""Paged attention on a CPU.

Decode rows run together: their blocks are gathered by `index_select` (one memcpy a block), and the query heads that
share a KV head become query rows of one `scaled_dot_product_attention`, which reads each K and V once for the whole
group. Rows come in order of context length, so a run of similar lengths is a slice and padding stays small. Prefill
chunks run one sequence at a time.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata

_GROUP_SLACK_BLOCKS = 4


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Rows [first, last) of a step, padded to the same number of blocks.

    blocks: int64 [rows x width], each row's visible blocks; short rows repeat one of their own.
    mask: additive, compute dtype, [rows, 1, 1, width x 16]; None where every slot is visible.
    """

    first: int
    last: int
    blocks: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row of several tokens: tokens [first, last) of the step, its visible blocks, and what each may see.

    mask: bool [tokens, keys], or None where plain causal order says it all (`fresh`: the chunk starts its sequence).
    """

    first: int
    last: int
    blocks: Tensor
    keys: int
    fresh: bool
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """The work of a step under one sliding window."""

    groups: tuple[DecodeGroup, ...]
    chunks: tuple[Chunk, ...]


@dataclass(slots=True)
class CpuAttentionPlan:
    """The work of a step for each window that its layers use; worked out on first use, then reused by layers."""

    metadata: AttentionMetadata
    dtype: torch.dtype
    _by_window: dict[int | None, WindowPlan] = field(default_factory=dict)

    @property
    def positions(self) -> Tensor:
        return self.metadata.positions

    @property
    def slot_mapping(self) -> Tensor:
        return self.metadata.slot_mapping

    def under(self, window: int | None) -> WindowPlan:
        plan = self._by_window.get(window)
        if plan is None:
            plan = WindowPlan(
                tuple(_decode_groups(self.metadata, window, self.dtype)),
                tuple(_chunks(self.metadata, window)),
            )
            self._by_window[window] = plan
        return plan


def _first_visible(context: int, tokens: int, window: int | None) -> int:
    """Position of the first key that any of the row's query tokens sees."""
    return 0 if window is None else max(0, context - tokens + 1 - window)


def _decode_groups(metadata: AttentionMetadata, window: int | None, dtype: torch.dtype) -> list[DecodeGroup]:
    rows = metadata.decode_rows
    contexts = metadata.context_lens[:rows]
    firsts = [_first_visible(context, 1, window) // BLOCK_TOKENS for context in contexts]
    widths = [math.ceil(context / BLOCK_TOKENS) - first for context, first in zip(contexts, firsts, strict=True)]
    groups = []
    start = 0
    while start < rows:
        end, limit = start + 1, widths[start] + widths[start] // 2 + _GROUP_SLACK_BLOCKS
        while end < rows and widths[end] <= limit:
            end += 1
        groups.append(_decode_group(metadata, start, end, firsts, max(widths[start:end]), window, dtype))
        start = end
    return groups


def _decode_group(
    metadata: AttentionMetadata,
    start: int,
    end: int,
    firsts: list[int],
    width: int,
    window: int | None,
    dtype: torch.dtype,
) -> DecodeGroup:
    context = torch.tensor(metadata.context_lens[start:end])[:, None]
    first = torch.tensor(firsts[start:end])[:, None]
    # A short row repeats its last block: its own memory, so always finite under the mask.
    columns = torch.minimum(first + torch.arange(width), (context - 1) // BLOCK_TOKENS)
    blocks = metadata.block_tables[start:end].gather(1, columns)
    position = first * BLOCK_TOKENS + torch.arange(width * BLOCK_TOKENS)
    hidden = position >= context
    if window is not None:
        hidden |= position < context - window
    if not hidden.any():
        return DecodeGroup(start, end, blocks.flatten(), None)
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -math.inf)
    return DecodeGroup(start, end, blocks.flatten(), mask[:, None, None, :])


def _chunks(metadata: AttentionMetadata, window: int | None) -> list[Chunk]:
    chunks = []
    token = rows = metadata.decode_rows
    for row in range(rows, len(metadata.query_lens)):
        tokens, context = metadata.query_lens[row], metadata.context_lens[row]
        first = _first_visible(context, tokens, window) // BLOCK_TOKENS
        blocks = metadata.block_tables[row, first : math.ceil(context / BLOCK_TOKENS)]
        keys = context - first * BLOCK_TOKENS
        fresh = context == tokens
        mask = None
        if not fresh or (window is not None and window < context):
            query_at = torch.arange(context - tokens, context)[:, None]
            key_at = torch.arange(first * BLOCK_TOKENS, context)[None, :]
            mask = key_at <= query_at
            if window is not None:
                mask &= key_at > query_at - window
        chunks.append(Chunk(token, token + tokens, blocks, keys, fresh, mask))
        token += tokens
    return chunks


def attend(query: Tensor, kv_layer: Tensor, plan: WindowPlan) -> Tensor:
    """Attention of query [T, Hq, D] over kv_layer [N, 16, 2, Hkv, D]; gives [T, Hq, D]."""
    if len(plan.groups) == 1 and not plan.chunks:
        return _attend_group(query, kv_layer, plan.groups[0])
    output = torch.empty_like(query)
    for group in plan.groups:
        output[group.first : group.last] = _attend_group(query[group.first : group.last], kv_layer, group)
    for chunk in plan.chunks:
        output[chunk.first : chunk.last] = _attend_chunk(query[chunk.first : chunk.last], kv_layer, chunk)
    return output


def _attend_group(query: Tensor, kv_layer: Tensor, group: DecodeGroup) -> Tensor:
    rows, heads, head_dim = query.shape
    kv_heads = kv_layer.shape[3]
    kv = kv_layer.index_select(0, group.blocks).view(rows, -1, 2, kv_heads, head_dim)
    folded = query.reshape(rows, kv_heads, heads // kv_heads, head_dim)
    attended = scaled_dot_product_attention(
        folded, kv[:, :, 0].transpose(1, 2), kv[:, :, 1].transpose(1, 2), attn_mask=group.mask
    )
    return attended.reshape(rows, heads, head_dim)


def _attend_chunk(query: Tensor, kv_layer: Tensor, chunk: Chunk) -> Tensor:
    _, heads, head_dim = query.shape
    kv_heads = kv_layer.shape[3]
    kv = kv_layer.index_select(0, chunk.blocks).view(-1, 2, kv_heads, head_dim)[: chunk.keys]
    # [keys, 2, Hkv, D] -> two of [1, Hq, keys, D], each KV head once for every query head that shares it
    shared = kv[:, :, :, None, :].expand(-1, -1, -1, heads // kv_heads, -1)
    keys, values = shared.reshape(chunk.keys, 2, heads, head_dim).permute(1, 2, 0, 3)
    attended = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
    )
    return attended[0].transpose(0, 1)
