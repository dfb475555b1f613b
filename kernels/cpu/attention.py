"""Paged attention on a CPU with torch.

Rows of few tokens (decode rows, with or without drafts) are batched with others of equal token count: their blocks are
gathered by `index_select` (one memcpy a block), and the query heads that share a KV head become query rows of one
`scaled_dot_product_attention`, which reads each K and V once for the whole group. Rows come in order of token count and
context length, so a run of similar ones is a slice and padding stays small. Longer chunks are computed one sequence at
a time.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernels.layout import BLOCK_TOKENS
from kernels.ops import AttentionMetadata

_GROUP_SLACK_BLOCKS = 4

GROUPED_TOKENS = 16
"""Maximum tokens of a row that is batched; a longer one is work enough alone."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Tokens [first, last) of a step: rows of `tokens` each, padded to the same number of blocks.

    blocks: int64 [rows x width], each row's visible blocks; short rows repeat one of their own.
    mask: additive, compute dtype, [rows, 1, tokens, width x 16]; None if every slot is visible to every token.
    """

    first: int
    last: int
    tokens: int
    blocks: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row of several tokens: tokens [first, last) of the step, its visible blocks, and their mask.

    mask: bool [tokens, keys], or None if plain causal order suffices (`fresh`: the chunk starts its sequence).
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

    groups: tuple[RowGroup, ...]
    chunks: tuple[Chunk, ...]


@dataclass(slots=True)
class CpuAttentionPlan:
    """The work of a step for each window of its layers; computed on first use and shared by layers."""

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
            plan = _plan_window(self.metadata, window, self.dtype)
            self._by_window[window] = plan
        return plan


def _first_visible(context: int, tokens: int, window: int | None) -> int:
    """Position of the first key that any of the row's query tokens attends to."""
    return 0 if window is None else max(0, context - tokens + 1 - window)


def _plan_window(metadata: AttentionMetadata, window: int | None, dtype: torch.dtype) -> WindowPlan:
    """Groups neighbours with equally few tokens and similar contexts; other rows are computed alone."""
    groups: list[RowGroup] = []
    chunks: list[Chunk] = []
    lens, contexts = metadata.query_lens.tolist(), metadata.context_lens.tolist()
    row = token = 0
    while row < len(lens):
        tokens, end = lens[row], row + 1
        if tokens > GROUPED_TOKENS:
            chunks.append(_chunk(metadata, row, token, window))
        else:
            widest = _visible_blocks(contexts[row], tokens, window)
            limit = widest + widest // 2 + _GROUP_SLACK_BLOCKS
            while (
                end < len(lens)
                and lens[end] == tokens
                and (blocks := _visible_blocks(contexts[end], tokens, window)) <= limit
            ):
                widest, end = max(widest, blocks), end + 1
            groups.append(_group(metadata, row, end, token, widest, window, dtype))
        token += tokens * (end - row)
        row = end
    return WindowPlan(tuple(groups), tuple(chunks))


def _visible_blocks(context: int, tokens: int, window: int | None) -> int:
    """Number of blocks that the row's tokens attend to."""
    return math.ceil(context / BLOCK_TOKENS) - _first_visible(context, tokens, window) // BLOCK_TOKENS


def _group(
    metadata: AttentionMetadata,
    start: int,
    end: int,
    token: int,
    width: int,
    window: int | None,
    dtype: torch.dtype,
) -> RowGroup:
    """Rows [start, end), whose tokens begin at `token`."""
    tokens, contexts = int(metadata.query_lens[start]), metadata.context_lens[start:end].tolist()
    context = torch.tensor(contexts)[:, None]
    first = torch.tensor([_first_visible(length, tokens, window) // BLOCK_TOKENS for length in contexts])[:, None]
    # A short row repeats its last block: its own memory, so always finite under the mask.
    columns = torch.minimum(first + torch.arange(width), (context - 1) // BLOCK_TOKENS)
    blocks = metadata.block_tables[start:end].gather(1, columns).flatten()
    key_at = (first * BLOCK_TOKENS + torch.arange(width * BLOCK_TOKENS))[:, None, :]
    query_at = (context + torch.arange(-tokens, 0))[:, :, None]
    hidden = key_at > query_at
    if window is not None:
        hidden |= key_at <= query_at - window
    last = token + tokens * (end - start)
    if not hidden.any():
        return RowGroup(token, last, tokens, blocks, None)
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -math.inf)
    return RowGroup(token, last, tokens, blocks, mask[:, None])


def _chunk(metadata: AttentionMetadata, row: int, token: int, window: int | None) -> Chunk:
    """The chunk of a row whose tokens begin at `token`."""
    tokens, context = int(metadata.query_lens[row]), int(metadata.context_lens[row])
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
    return Chunk(token, token + tokens, blocks, keys, fresh, mask)


def attend(query: Tensor, kv_layer: Tensor, plan: WindowPlan) -> Tensor:
    """Attention of query [T, Hq, D] over kv_layer [N, 16, 2, Hkv, D], or over keys that are the values, too,
    [N, 16, 1, Hkv, D]; returns [T, Hq, D]."""
    if len(plan.groups) == 1 and not plan.chunks:
        return _attend_group(query, kv_layer, plan.groups[0])
    output = torch.empty_like(query)
    for group in plan.groups:
        output[group.first : group.last] = _attend_group(query[group.first : group.last], kv_layer, group)
    for chunk in plan.chunks:
        output[chunk.first : chunk.last] = _attend_chunk(query[chunk.first : chunk.last], kv_layer, chunk)
    return output


def _attend_group(query: Tensor, kv_layer: Tensor, group: RowGroup) -> Tensor:
    count, heads, head_dim = query.shape
    (kinds, kv_heads), tokens = kv_layer.shape[2:4], group.tokens
    rows, shared = count // tokens, heads // kv_heads
    kv = kv_layer.index_select(0, group.blocks).view(rows, -1, kinds, kv_heads, head_dim)
    # Every query head that shares a KV head, of every token of the row: [rows, Hkv, tokens x heads each, D]
    folded = query.reshape(rows, tokens, kv_heads, shared, head_dim).transpose(1, 2).flatten(2, 3)
    mask = group.mask if tokens == 1 or group.mask is None else group.mask.repeat_interleave(shared, dim=2)
    attended = scaled_dot_product_attention(
        folded, kv[:, :, 0].transpose(1, 2), kv[:, :, -1].transpose(1, 2), attn_mask=mask
    )
    unfolded = attended.reshape(rows, kv_heads, tokens, shared, head_dim).transpose(1, 2)
    return unfolded.reshape(count, heads, head_dim)


def _attend_chunk(query: Tensor, kv_layer: Tensor, chunk: Chunk) -> Tensor:
    _, heads, head_dim = query.shape
    kinds, kv_heads = kv_layer.shape[2:4]
    kv = kv_layer.index_select(0, chunk.blocks).view(-1, kinds, kv_heads, head_dim)[: chunk.keys]
    # [keys, 2, Hkv, D] -> two of [1, Hq, keys, D], each KV head once for every query head that shares it
    shared = kv[:, :, :, None, :].expand(-1, -1, -1, heads // kv_heads, -1)
    of_heads = shared.reshape(chunk.keys, kinds, heads, head_dim).permute(1, 2, 0, 3)
    attended = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        of_heads[:1],
        of_heads[-1:],
        attn_mask=chunk.mask,
        is_causal=chunk.mask is None,
    )
    return attended[0].transpose(0, 1)
