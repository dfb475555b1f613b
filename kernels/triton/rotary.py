"""Norms and rotates heads, and stores keys and values if there are any, in one pass after the fused projection.

A program processes a tile of the heads of one token, whichever of query, key and value they are, in three parts: the
two halves that rotate into one another, and the dimensions past them, if any.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.layout import BLOCK_TOKENS
from kernels.ops import HeadNorms, RopeRows
from kernels.triton.dependent_launch import launch_options, wait_for_predecessor
from kernels.triton.int8_kv import largest_of, round_by, scale_for, scales_of_head
from kernels.triton.tiles import require_contiguous, tile_above, warps_for
from kernels.weights import KVScales

_HEADS = 16
"""Heads of a program. With 128 dimensions its four warps have four loads of 16 bytes a thread in flight."""

BLOCK = tl.constexpr(BLOCK_TOKENS)
LARGEST_FP8 = tl.constexpr(448.0)


@triton.jit
def load_part(heads, exists, dim, START: tl.constexpr, COUNT: tl.constexpr):
    """Dimensions [START, START + COUNT) of each head, float32 [HEADS, part]; zeros elsewhere.

    heads: pointers to each head's first dimension. dim: int32 [part], from 0.
    """
    return tl.load(heads[:, None] + (START + dim)[None, :], mask=exists[:, None] & (dim < COUNT)[None, :], other=0.0)


@triton.jit
def norm_part(
    part,
    scale,
    is_query,
    is_value,
    query_weight,
    key_weight,
    value_weight,
    dim,
    START: tl.constexpr,
    COUNT: tl.constexpr,
):
    """A part times each head's scale, rounded, times its weight, rounded: as the reference does, in float32. Without
    `key_weight` all heads are queries, and without `value_weight` the result for values is arbitrary."""
    inside = dim < COUNT
    weight = tl.load(query_weight + START + dim, mask=inside, other=0.0)[None, :]
    if key_weight is not None:
        of_key = tl.load(key_weight + START + dim, mask=inside, other=0.0)
        weight = tl.where(is_query[:, None], weight, of_key[None, :])
    if value_weight is not None:
        of_value = tl.load(value_weight + START + dim, mask=inside, other=0.0)
        weight = tl.where(is_value[:, None], of_value[None, :], weight)
    return ((part * scale).to(weight.dtype).to(tl.float32) * weight.to(tl.float32)).to(weight.dtype).to(tl.float32)


@triton.jit
def store_part(
    part, query, kv, query_at, kv_at, is_query, is_kv, kv_scale, dim, START: tl.constexpr, COUNT: tl.constexpr
):
    """Store a part of each head in the query or in KV memory, if there is one; for int8 and fp8 divided by `kv_scale`
    [HEADS], and saturated for fp8."""
    inside = (dim < COUNT)[None, :]
    at = (START + dim)[None, :]
    rounded = part.to(query.dtype.element_ty)
    tl.store(query + query_at[:, None] + at, rounded, mask=is_query[:, None] & inside)
    if kv is not None:
        if kv_scale is None:
            kept = rounded
        elif kv.dtype.element_ty == tl.int8:
            kept = round_by(rounded.to(tl.float32), kv_scale)
        else:
            kept = tl.div_rn(rounded.to(tl.float32), kv_scale[:, None])
            # A NaN stays one, so that it is found where finite rows are asked for.
            kept = tl.where(kept > LARGEST_FP8, LARGEST_FP8, tl.where(kept < -LARGEST_FP8, -LARGEST_FP8, kept))
        tl.store(kv + kv_at[:, None] + at, kept.to(kv.dtype.element_ty), mask=is_kv[:, None] & inside)


@triton.jit
def store_int8_scales(largest, kv, slot, head, is_kv, block_stride, KV_HEADS: tl.constexpr, DIM: tl.constexpr):
    """Store the scale of each key and value vector behind its block, and return them, float32 [HEADS]. head: int32
    [HEADS], from 0 for the first key and KV_HEADS for the first value. largest: their largest magnitudes."""
    scale = scale_for(largest)
    kv_head, kind = head % KV_HEADS, head // KV_HEADS
    block = kv + (slot // BLOCK) * block_stride
    at = scales_of_head(block, kv_head, KV_HEADS, DIM) + kind * BLOCK + slot % BLOCK
    tl.store(at, scale.to(tl.bfloat16), mask=is_kv)
    return scale


@triton.jit
def rotate_and_store_kernel(
    qkv,
    query_weight,
    key_weight,
    value_weight,
    cos,
    sin,
    positions,
    slot_mapping,
    query,
    kv,
    eps,
    block_stride,
    key_scale,
    value_scale,
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
):
    """Norm, rotate and place the heads of qkv [T, QUERIES + 2 KV_HEADS, DIM].

    query [T, QUERIES, DIM] gets the queries; kv, a layer [N, 16, 2, KV_HEADS, DIM] whose blocks are `block_stride`
    elements apart, the keys and values at slot_mapping int64 [T], unless that is negative. cos, sin: [T, HALF], or of
    every position with positions int64 [T].
    The weights [DIM] are None where heads are not normed, the scales None where KV is not fp8. In int8 a vector is
    stored with a scale of its own: `kernels.triton.int8_kv`. Grid (T, tiles of HEADS heads). Oracles:
    `kernels.reference.rotate_and_store`, for int8 with `kernels.reference_int8.to_int8`; of queries alone, with
    KV_HEADS 0, and None for what is of keys and values, `kernels.reference.rotate`.
    """
    wait_for_predecessor()
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_query = head < QUERIES
    is_value = head >= QUERIES + KV_HEADS
    exists = head < QUERIES + 2 * KV_HEADS
    heads = qkv + (token * (QUERIES + 2 * KV_HEADS) + head) * DIM
    dim = tl.arange(0, HALF_TILE)
    first = load_part(heads, exists, dim, 0, HALF).to(tl.float32)
    second = load_part(heads, exists, dim, HALF, HALF).to(tl.float32)
    if REST_TILE:
        rest_dim = tl.arange(0, REST_TILE)
        rest = load_part(heads, exists, rest_dim, 2 * HALF, DIM - 2 * HALF).to(tl.float32)

    plain_first, plain_second = first, second
    if REST_TILE:
        plain_rest = rest
    if query_weight is not None:
        squares = tl.sum(first * first + second * second, axis=1)
        if REST_TILE:
            squares += tl.sum(rest * rest, axis=1)
        scale = tl.rsqrt(squares / DIM + eps)[:, None]
        first = norm_part(first, scale, is_query, is_value, query_weight, key_weight, value_weight, dim, 0, HALF)
        second = norm_part(second, scale, is_query, is_value, query_weight, key_weight, value_weight, dim, HALF, HALF)
        if REST_TILE:
            rest = norm_part(
                rest,
                scale,
                is_query,
                is_value,
                query_weight,
                key_weight,
                value_weight,
                rest_dim,
                2 * HALF,
                DIM - 2 * HALF,
            )
    if value_weight is not None:
        plain_first, plain_second = first, second
    elif REST_TILE:
        rest = tl.where(is_value[:, None], plain_rest, rest)

    line = token
    if positions is not None:
        line = tl.load(positions + token)
    turn_cos = tl.load(cos + line * HALF + dim, mask=dim < HALF, other=0.0).to(tl.float32)[None, :]
    turn_sin = tl.load(sin + line * HALF + dim, mask=dim < HALF, other=0.0).to(tl.float32)[None, :]
    turned_first = tl.where(is_value[:, None], plain_first, first * turn_cos - second * turn_sin)
    turned_second = tl.where(is_value[:, None], plain_second, second * turn_cos + first * turn_sin)

    query_at = (token * QUERIES + head) * DIM
    is_kv, kv_at, kv_scale = None, None, None
    if kv is not None:
        slot = tl.load(slot_mapping + token)
        is_kv = exists & (head >= QUERIES) & (slot >= 0)
        # Keys and values of a slot lie one after the other, as they do behind the queries.
        kv_at = (slot // BLOCK) * block_stride + ((slot % BLOCK) * (2 * KV_HEADS) + head - QUERIES) * DIM
        if kv.dtype.element_ty == tl.int8:
            kept_first = turned_first.to(query.dtype.element_ty).to(tl.float32)
            kept_second = turned_second.to(query.dtype.element_ty).to(tl.float32)
            largest = tl.maximum(largest_of(kept_first), largest_of(kept_second))
            if REST_TILE:
                largest = tl.maximum(largest, largest_of(rest.to(query.dtype.element_ty).to(tl.float32)))
            kv_scale = store_int8_scales(largest, kv, slot, head - QUERIES, is_kv, block_stride, KV_HEADS, DIM)
    if key_scale is not None:
        kv_scale = tl.where(is_value, value_scale, key_scale)
    store_part(turned_first, query, kv, query_at, kv_at, is_query, is_kv, kv_scale, dim, 0, HALF)
    store_part(turned_second, query, kv, query_at, kv_at, is_query, is_kv, kv_scale, dim, HALF, HALF)
    if REST_TILE:
        store_part(rest, query, kv, query_at, kv_at, is_query, is_kv, kv_scale, rest_dim, 2 * HALF, DIM - 2 * HALF)


def rotate_and_store(
    qkv: Tensor,
    norms: HeadNorms | None,
    rope: RopeRows,
    kv_layer: Tensor,
    slot_mapping: Tensor,
    scales: KVScales | None = None,
) -> Tensor:
    """`kernels.reference.rotate_and_store`; `scales` where kv_layer is fp8 e4m3. In int8 it is the numbers' part of
    blocks with scales behind them. A negative slot stores nowhere. Blocks
    of kv_layer may lie apart, as those of a pool with several layers in a block."""
    require_contiguous(qkv, rope.cos, rope.sin, slot_mapping, kv_layer[0])
    tokens, heads, dim = qkv.shape
    kv_heads, half = kv_layer.shape[3], rope.cos.shape[-1]
    query = torch.empty((tokens, heads - 2 * kv_heads, dim), dtype=qkv.dtype, device=qkv.device)
    rotate_and_store_kernel[(tokens, triton.cdiv(heads, _HEADS))](
        qkv,
        norms.query if norms else None,
        norms.key if norms else None,
        norms.value if norms else None,
        rope.cos,
        rope.sin,
        rope.positions,
        slot_mapping,
        query,
        kv_layer,
        norms.eps if norms else 0.0,
        kv_layer.stride(0),
        scales.key if scales else None,
        scales.value if scales else None,
        **shape_of(heads - 2 * kv_heads, kv_heads, dim, half),
        num_warps=warps_of(dim, half),
        **launch_options(),
    )
    return query


def rotate(query: Tensor, norms: HeadNorms | None, rope: RopeRows) -> Tensor:
    """`kernels.reference.rotate`."""
    require_contiguous(query, rope.cos, rope.sin)
    tokens, heads, dim = query.shape
    half = rope.cos.shape[-1]
    rotated = torch.empty_like(query)
    rotate_and_store_kernel[(tokens, triton.cdiv(heads, _HEADS))](
        query,
        norms.query if norms else None,
        None,
        None,
        rope.cos,
        rope.sin,
        rope.positions,
        None,
        rotated,
        None,
        norms.eps if norms else 0.0,
        None,
        None,
        None,
        **shape_of(heads, 0, dim, half),
        num_warps=warps_of(dim, half),
        **launch_options(),
    )
    return rotated


def shape_of(queries: int, kv_heads: int, dim: int, half: int) -> dict[str, int]:
    """Compile-time constants for heads of `dim` dimensions of which twice `half` rotate."""
    rest = dim - 2 * half
    return {
        "QUERIES": queries,
        "KV_HEADS": kv_heads,
        "DIM": dim,
        "HALF": half,
        "HEADS": _HEADS,
        "HALF_TILE": tile_above(half),
        "REST_TILE": tile_above(rest) if rest else 0,
    }


def warps_of(dim: int, half: int) -> int:
    """Number of warps whose threads load a half 16 bytes at a time without holding too much of the rest."""
    rest = dim - 2 * half
    return warps_for(_HEADS * max(tile_above(half), tile_above(rest) // 4 if rest else 0))
