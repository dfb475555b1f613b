"""Rotates the queries of latent attention, and norms, rotates and stores the key of a token, in one pass after the
projections."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.layout import BLOCK_TOKENS
from kernels.ops import RopeRows
from kernels.triton.norms import normed
from kernels.triton.tiles import require_contiguous, tile_above, warps_for

_HEADS = 32
"""Query heads of a program."""

BLOCK = tl.constexpr(BLOCK_TOKENS)


@triton.jit
def rotate_and_store_latents_kernel(
    query,
    down,
    norm,
    cos,
    sin,
    positions,
    slot_mapping,
    output,
    kv,
    eps,
    block_stride,
    QUERIES: tl.constexpr,
    DIM: tl.constexpr,
    RANK: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    HALF_TILE: tl.constexpr,
    RANK_TILE: tl.constexpr,
):
    """Rotate the first 2 HALF dimensions of query [T, QUERIES, DIM] into those of output [T, QUERIES, 2 HALF + RANK],
    and store a token's key.

    down [T, RANK + 2 HALF]: the latent, which is normed by norm [RANK], and what is rotated of the key; kv, a layer
    [N, 16, 1, 1, 2 HALF + RANK] whose blocks are `block_stride` elements apart, gets the latter and then the latent at
    slot_mapping int64 [T], unless that is negative. cos, sin: [T, HALF], or of every position with positions int64
    [T]. Grid (T, 1 + tiles of HEADS heads). Oracle:
    `kernels.reference_latent.rotate_and_store_latents`.
    """
    token = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, HALF_TILE)
    inside = dim < HALF
    turn = token
    if positions is not None:
        turn = tl.load(positions + token)
    turn_cos = tl.load(cos + turn * HALF + dim, mask=inside, other=0.0).to(tl.float32)
    turn_sin = tl.load(sin + turn * HALF + dim, mask=inside, other=0.0).to(tl.float32)
    if tl.program_id(1) == 0:
        slot = tl.load(slot_mapping + token)
        if slot >= 0:
            line = down + token * (RANK + 2 * HALF)
            stored = kv + (slot // BLOCK) * block_stride + (slot % BLOCK) * (RANK + 2 * HALF)
            first = tl.load(line + RANK + dim, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(line + RANK + HALF + dim, mask=inside, other=0.0).to(tl.float32)
            tl.store(stored + dim, (first * turn_cos - second * turn_sin).to(kv.dtype.element_ty), mask=inside)
            tl.store(stored + HALF + dim, (second * turn_cos + first * turn_sin).to(kv.dtype.element_ty), mask=inside)
            place = tl.arange(0, RANK_TILE)
            is_latent = place < RANK
            latent = tl.load(line + place, mask=is_latent, other=0.0).to(tl.float32)
            weight = tl.load(norm + place, mask=is_latent, other=0.0)
            kept = normed(latent, weight, eps, RANK)
            tl.store(stored + 2 * HALF + place, kept.to(kv.dtype.element_ty), mask=is_latent)
    else:
        head = (tl.program_id(1) - 1) * HEADS + tl.arange(0, HEADS)
        there = (head < QUERIES)[:, None] & inside[None, :]
        source = query + ((token * QUERIES + head) * DIM)[:, None] + dim[None, :]
        first = tl.load(source, mask=there, other=0.0).to(tl.float32)
        second = tl.load(source + HALF, mask=there, other=0.0).to(tl.float32)
        target = output + ((token * QUERIES + head) * (RANK + 2 * HALF))[:, None] + dim[None, :]
        turned_first = first * turn_cos[None, :] - second * turn_sin[None, :]
        turned_second = second * turn_cos[None, :] + first * turn_sin[None, :]
        tl.store(target, turned_first.to(output.dtype.element_ty), mask=there)
        tl.store(target + HALF, turned_second.to(output.dtype.element_ty), mask=there)


def rotate_and_store_latents(
    query: Tensor,
    down: Tensor,
    norm: Tensor,
    eps: float,
    rope: RopeRows,
    kv_layer: Tensor,
    slot_mapping: Tensor,
    output: Tensor,
) -> None:
    """`kernels.reference_latent.rotate_and_store_latents`, into the first dimensions of output [T, Hq, r + L]."""
    require_contiguous(query, down, rope.cos, rope.sin, slot_mapping, kv_layer[0], output)
    tokens, heads, dim = query.shape
    half = rope.cos.shape[-1]
    rank = down.shape[1] - 2 * half
    shape = latent_store_shape(heads, dim, rank, half)
    rotate_and_store_latents_kernel[(tokens, 1 + triton.cdiv(heads, _HEADS))](
        query,
        down,
        norm,
        rope.cos,
        rope.sin,
        rope.positions,
        slot_mapping,
        output,
        kv_layer,
        eps,
        kv_layer.stride(0),
        **shape,
        num_warps=latent_store_warps(rank),
    )


def latent_store_shape(heads: int, dim: int, rank: int, half: int) -> dict[str, int]:
    """Compile-time constants for query heads of `dim` dimensions, of which twice `half` rotate."""
    return {
        "QUERIES": heads,
        "DIM": dim,
        "RANK": rank,
        "HALF": half,
        "HEADS": _HEADS,
        "HALF_TILE": tile_above(half),
        "RANK_TILE": tile_above(rank),
    }


def latent_store_warps(rank: int) -> int:
    """Number of warps that load a latent 16 bytes a thread."""
    return warps_for(tile_above(rank))
