"""Paged attention on a GPU (Kwon et al., arXiv 2309.06180): the launches of one layer, for every row of a step."""

import math
from functools import lru_cache

import torch
from torch import Tensor

from kernels.layout import BLOCK_TOKENS
from kernels.triton.capability import capability_of
from kernels.triton.decode import decode
from kernels.triton.dependent_launch import launch_options
from kernels.triton.extend import extend
from kernels.triton.merging import check_tiles
from kernels.triton.plan import TritonPlan
from kernels.triton.query_tiles import query_tiles
from kernels.triton.tuning import MAX_HEAD_DIM, AttentionShape, decode_launch, extend_launch
from kernels.weights import KVScales

_NO_SCALES = KVScales(key=1.0, value=1.0)
_INTERPRETED_PROGRAMS = 3


def attend(
    query: Tensor,
    kv_layer: Tensor,
    plan: TritonPlan,
    window: int | None,
    scales: KVScales = _NO_SCALES,
    cap: float | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Causal attention of query [T, Hq, D] over the paged KV [N, 16, 2, Hkv, D]; returns [T, Hq, D].

    Defined by `kernels.reference.attend` on stored values times their scales; `cap`, `sinks` and `scale` as there. The
    output is 0 for tokens of a row with context 0, and arbitrary for tokens of no row.

    Does not synchronise with the device. The launches depend on the plan's plain numbers alone, so a CUDA graph is
    valid for any contexts within them.

    Raises:
        ValueError: D is not a multiple of 16 or exceeds MAX_HEAD_DIM, a block is not contiguous, or decode rows have
            more KV heads times tiles of queries than there are counters.
    """
    _check_layout(query, kv_layer)
    output = torch.empty_like(query)
    kv_heads, head_dim = kv_layer.shape[-2:]
    shape = AttentionShape(
        kv_heads,
        query.shape[1] // kv_heads,
        head_dim,
        window or 0,
        kv_layer.element_size(),
        cap or 0.0,
        capability_of(query.device),
    )
    scale = 1 / math.sqrt(head_dim) if scale is None else scale
    scale *= (math.log2(math.e) if cap is None else 1 / cap) * scales.key
    if plan.decode_rows:
        _decode(query, kv_layer, sinks, output, plan, shape, scale, scales.value)
    if plan.extend_rows:
        _extend(query, kv_layer, sinks, output, plan, shape, scale, scales.value)
    return output


def _check_layout(query: Tensor, kv_layer: Tensor) -> None:
    _, block_tokens, _, kv_heads, head_dim = kv_layer.shape
    token = 2 * kv_heads * head_dim
    if kv_layer.stride()[1:] != (token, token // 2, head_dim, 1) or block_tokens != BLOCK_TOKENS:
        raise ValueError(f"a block's KV has to be dense [16, 2, Hkv, D], not strides {kv_layer.stride()}")
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"a head has {MAX_HEAD_DIM} dimensions at the most, not {head_dim}")
    if head_dim % 16 or kv_layer.stride(0) % 16:
        raise ValueError(f"KV has to lie at multiples of 16 elements, not strides {kv_layer.stride()}")
    if query.shape[-1] != head_dim or query.shape[1] % kv_heads or not query.is_contiguous():
        raise ValueError(f"queries {tuple(query.shape)} do not go with {kv_heads} KV heads of {head_dim}, or have gaps")


def _decode(
    query: Tensor,
    kv_layer: Tensor,
    sinks: Tensor | None,
    output: Tensor,
    plan: TritonPlan,
    shape: AttentionShape,
    scale: float,
    value_scale: float,
) -> None:
    _, heads, head_dim = query.shape
    partials = query.new_empty((plan.split_capacity, plan.decode_queries, heads, head_dim), dtype=torch.float32)
    partial_sums = query.new_empty(partials.shape[:-1], dtype=torch.float32)
    launch = decode_launch(shape, plan.decode_queries)
    check_tiles(shape.kv_heads * -(-plan.decode_queries * shape.group // int(launch.constexprs["QUERY_TILE"])))
    decode[(programs_of(query.device, launch.programs),)](
        query,
        kv_layer,
        sinks,
        output,
        partials,
        partial_sums,
        plan.counters,
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
        value_scale,
        **launch.options,
        **launch_options(),
    )


def _extend(
    query: Tensor,
    kv_layer: Tensor,
    sinks: Tensor | None,
    output: Tensor,
    plan: TritonPlan,
    shape: AttentionShape,
    scale: float,
    value_scale: float,
) -> None:
    launch = extend_launch(shape)
    tiles = query_tiles(plan.extend_tokens, plan.extend_rows, shape.group, int(launch.constexprs["QUERY_TILE"]))
    extend[(shape.kv_heads, tiles)](
        query,
        kv_layer,
        sinks,
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
        value_scale,
        **launch.options,
    )


@lru_cache
def programs_of(device: torch.device, per_multiprocessor: int) -> int:
    """Number of programs of a persistent kernel: as many as the GPU runs at once, a few under the interpreter."""
    if device.type != "cuda":
        return _INTERPRETED_PROGRAMS
    return per_multiprocessor * torch.cuda.get_device_properties(device).multi_processor_count
