"""Latent attention on a GPU: the launches of one layer, from projected queries and latents to the heads' values."""

import math

import torch
from torch import Tensor

from kernels.layout import BLOCK_TOKENS
from kernels.ops import LatentWeights, RopeRows
from kernels.triton.attention import programs_of
from kernels.triton.by_head import HeadLinears
from kernels.triton.capability import capability_of
from kernels.triton.latent_attention import latent_decode, latent_extend, merge_latents
from kernels.triton.latent_store import rotate_and_store_latents
from kernels.triton.plan import TritonPlan
from kernels.triton.query_tiles import query_tiles
from kernels.triton.tuning_latents import (
    JOINED_SPLITS,
    LatentShape,
    latent_decode_launch,
    latent_extend_launch,
    latent_merge_launch,
)


def latent_queries(
    weights: LatentWeights, query: Tensor, down: Tensor, rope: RopeRows, kv_layer: Tensor, slot_mapping: Tensor
) -> Tensor:
    """Queries [T, Hq, D'] over latents; stores the token's key. See `kernels.ops.Ops.latent_queries`."""
    absorb, rotated = weights.of_queries, weights.rotated
    assert isinstance(absorb, HeadLinears), "weights of another backend"
    tokens, heads, _ = query.shape
    output = query.new_empty((tokens, heads, kv_layer.shape[-1]))
    absorb.into(output[:, :, rotated:], query[:, :, rotated:])
    rotate_and_store_latents(query, down, weights.norm, weights.eps, rope, kv_layer, slot_mapping, output)
    return output


def latent_values(weights: LatentWeights, latents: Tensor) -> Tensor:
    """The heads' values [T, Hq Dv] of mean latents [T, Hq, L]."""
    of_values = weights.of_values
    assert isinstance(of_values, HeadLinears), "weights of another backend"
    output = latents.new_empty((*latents.shape[:2], weights.value_dim))
    of_values.into(output, latents)
    return output.flatten(1)


def attend_latents(query: Tensor, kv_layer: Tensor, plan: TritonPlan, rotated: int, scale: float) -> Tensor:
    """Causal attention of query [T, Hq, D'] over the latents [N, 16, 1, 1, D']; returns [T, Hq, L].

    Defined by `kernels.reference_latent.attend_latents`. Padding, launches and synchronisation are as in
    `kernels.triton.attention.attend`.

    Raises:
        ValueError: D' is not a multiple of 16, or a block is not contiguous.
    """
    _check_layout(query, kv_layer)
    heads, dim = query.shape[1:]
    shape = LatentShape(heads, rotated, dim - rotated, kv_layer.element_size(), capability_of(query.device))
    output = query.new_empty((*query.shape[:2], shape.rank))
    if plan.decode_rows:
        _decode(query, kv_layer, output, plan, shape, scale * math.log2(math.e))
    if plan.extend_rows:
        _extend(query, kv_layer, output, plan, shape, scale * math.log2(math.e))
    return output


def _check_layout(query: Tensor, kv_layer: Tensor) -> None:
    dim = query.shape[-1]
    if kv_layer.shape[1:] != (BLOCK_TOKENS, 1, 1, dim) or kv_layer.stride()[1] != dim or kv_layer.stride()[-1] != 1:
        raise ValueError(f"latents {tuple(kv_layer.shape)} with strides {kv_layer.stride()}, for queries of {dim}")
    if dim % 16 or kv_layer.stride(0) % 16:
        raise ValueError(f"latents have to lie at multiples of 16 elements, not strides {kv_layer.stride()}")
    if not query.is_contiguous():
        raise ValueError(f"queries {tuple(query.shape)} have gaps")


def _decode(
    query: Tensor, kv_layer: Tensor, output: Tensor, plan: TritonPlan, shape: LatentShape, scale: float
) -> None:
    splits = plan.split_capacity // JOINED_SPLITS + plan.decode_rows
    partials = query.new_empty((splits, plan.decode_queries, shape.heads, shape.rank), dtype=torch.float32)
    partial_sums = query.new_empty(partials.shape[:-1], dtype=torch.float32)
    launch = latent_decode_launch(shape, plan.decode_queries)
    latent_decode[(programs_of(query.device, launch.programs),)](
        query,
        kv_layer,
        output,
        partials,
        partial_sums,
        plan.block_tables,
        plan.row_slots,
        plan.query_starts,
        plan.context_lens,
        plan.split_starts,
        plan.decode_rows,
        plan.decode_queries,
        plan.block_tables.stride(0),
        kv_layer.stride(0),
        scale,
        **launch.options,
    )
    merge_latents[(plan.decode_rows, plan.decode_queries, shape.heads)](
        output,
        partials,
        partial_sums,
        plan.query_starts,
        plan.context_lens,
        plan.split_starts,
        plan.decode_queries,
        **latent_merge_launch(shape).options,
    )


def _extend(
    query: Tensor, kv_layer: Tensor, output: Tensor, plan: TritonPlan, shape: LatentShape, scale: float
) -> None:
    launch = latent_extend_launch(shape)
    tiles = query_tiles(plan.extend_tokens, plan.extend_rows, shape.heads, int(launch.constexprs["QUERY_TILE"]))
    latent_extend[(tiles,)](
        query,
        kv_layer,
        output,
        plan.block_tables,
        plan.row_slots,
        plan.query_starts,
        plan.context_lens,
        plan.decode_rows,
        plan.extend_rows,
        plan.block_tables.stride(0),
        kv_layer.stride(0),
        scale,
        **launch.options,
    )
