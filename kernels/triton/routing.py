"""Which experts compute which tokens, on the device. Launches depend on the number of tokens alone: a CUDA graph may
hold them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference_experts import UNUSED, ExpertTiles, most_tiles
from kernels.triton.tiles import require_contiguous, tile_above

READ_TILE = 1024
"""Assignments that a program reads at a time."""
_UNUSED = tl.constexpr(UNUSED)


@triton.jit
def route_kernel(
    logits,
    slot_mapping,
    chosen,
    weights,
    EXPERTS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    RENORMALISE: tl.constexpr,
    TILE: tl.constexpr,
):
    """The PER_TOKEN most probable of logits float32 [T, EXPERTS] into chosen int32 and weights float32 [T, PER_TOKEN].

    Of equal logits the lower expert is chosen; a logit that is NaN makes the token's weights NaN. Grid: (T,). Oracle:
    `kernels.reference.route`, with `without_padding`.
    """
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, TILE)
    row = tl.load(logits + token * EXPERTS + expert, mask=expert < EXPERTS, other=float("-inf"))
    left = tl.where(row == row, row, float("-inf"))
    highest = tl.max(left, axis=0)
    powers = tl.exp(row - tl.where(highest > float("-inf"), highest, 0.0))
    whole = tl.sum(powers, axis=0)
    used = tl.load(slot_mapping + token) >= 0
    rank = tl.arange(0, tile_of(PER_TOKEN))
    best = tl.zeros((tile_of(PER_TOKEN),), tl.int32)
    share = tl.zeros((tile_of(PER_TOKEN),), tl.float32)
    for each in tl.static_range(PER_TOKEN):
        found = tl.argmax(left, axis=0)
        best = tl.where(rank == each, found.to(tl.int32), best)
        share = tl.where(rank == each, tl.sum(tl.where(expert == found, powers, 0.0), axis=0), share)
        left = tl.where(expert == found, float("-inf"), left)
    if RENORMALISE:
        # Zero times a broken sum is NaN.
        whole = tl.sum(share, axis=0) + whole * 0.0
    exists = rank < PER_TOKEN
    tl.store(chosen + token * PER_TOKEN + rank, tl.where(used, best, _UNUSED), mask=exists)
    tl.store(weights + token * PER_TOKEN + rank, share / whole, mask=exists)


@triton.constexpr_function
def tile_of(count):
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


@triton.jit(do_not_specialize=["assignments"])
def count_kernel(chosen, counts, assignments, TILE: tl.constexpr):
    """Assignments of each expert, counts int32 [experts], among chosen int32 [assignments]. Grid: (experts,)."""
    expert = tl.program_id(0)
    found = tl.zeros((TILE,), tl.int32)
    for start in range(0, assignments, TILE):
        at = start + tl.arange(0, TILE)
        found += (tl.load(chosen + at, mask=at < assignments, other=_UNUSED) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found, axis=0))


@triton.jit(do_not_specialize=["assignments", "tiles"])
def align_kernel(
    chosen,
    counts,
    experts,
    places,
    assignments,
    tiles,
    EXPERTS: tl.constexpr,
    EXPERTS_TILE: tl.constexpr,
    ROW_TILE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Sort assignments into places int32 [tiles x ROW_TILE], and tiles into experts int32 [tiles].

    Grid: (EXPERTS + 1,): each expert's tiles, and the unused ones. Oracle: `kernels.reference_experts.align`.
    """
    expert = tl.program_id(0)
    each = tl.arange(0, EXPERTS_TILE)
    count = tl.load(counts + each, mask=each < EXPERTS, other=0)
    own = (count + ROW_TILE - 1) // ROW_TILE
    first = tl.sum(tl.where(each < expert, own, 0), axis=0)
    step = tl.arange(0, TILE)
    if expert == EXPERTS:
        for start in range(first, tiles, TILE):
            tl.store(experts + start + step, tl.full((TILE,), _UNUSED, tl.int32), mask=start + step < tiles)
        for start in range(first * ROW_TILE, tiles * ROW_TILE, TILE):
            at = start + step
            tl.store(places + at, tl.full((TILE,), _UNUSED, tl.int32), mask=at < tiles * ROW_TILE)
    else:
        end = first + tl.sum(tl.where(each == expert, own, 0), axis=0)
        for start in range(first, end, TILE):
            tl.store(experts + start + step, tl.zeros((TILE,), tl.int32) + expert, mask=start + step < end)
        before = first * ROW_TILE
        for start in range(0, assignments, TILE):
            at = start + step
            mine = (tl.load(chosen + at, mask=at < assignments, other=_UNUSED) == expert).to(tl.int32)
            place = before + tl.cumsum(mine, axis=0) - 1
            tl.store(places + place, at, mask=mine > 0)
            before += tl.sum(mine, axis=0)
        for start in range(before, end * ROW_TILE, TILE):
            at = start + step
            tl.store(places + at, tl.full((TILE,), _UNUSED, tl.int32), mask=at < end * ROW_TILE)


def route(logits: Tensor, per_token: int, renormalise: bool, slot_mapping: Tensor) -> tuple[Tensor, Tensor]:
    """`kernels.reference.route` with `without_padding`; experts int32."""
    require_contiguous(logits)
    tokens, experts = logits.shape
    chosen = torch.empty((tokens, per_token), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, per_token), dtype=torch.float32, device=logits.device)
    if tokens:
        route_kernel[(tokens,)](
            logits,
            slot_mapping,
            chosen,
            weights,
            EXPERTS=experts,
            PER_TOKEN=per_token,
            RENORMALISE=renormalise,
            TILE=tile_above(experts),
            num_warps=1,
        )
    return chosen, weights


def align(chosen: Tensor, experts: int, tile: int) -> ExpertTiles:
    """`kernels.reference_experts.align` of chosen int32 [T, per_token]."""
    assignments, device = chosen.numel(), chosen.device
    tiles = most_tiles(assignments, experts, tile)
    of_tiles = torch.empty((tiles,), dtype=torch.int32, device=device)
    places = torch.empty((tiles * tile,), dtype=torch.int32, device=device)
    counts = torch.empty((experts,), dtype=torch.int32, device=device)
    count_kernel[(experts,)](chosen, counts, assignments, TILE=READ_TILE)
    align_kernel[(experts + 1,)](
        chosen,
        counts,
        of_tiles,
        places,
        assignments,
        tiles,
        EXPERTS=experts,
        EXPERTS_TILE=tile_above(experts),
        ROW_TILE=tile,
        TILE=READ_TILE,
    )
    return ExpertTiles(tile, of_tiles, places)
