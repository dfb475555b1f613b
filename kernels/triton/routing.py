"""Which experts compute which tokens, on the device. Launches depend on the number of tokens alone: a CUDA graph may
hold them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference_experts import UNUSED, ExpertTiles, most_tiles
from kernels.triton.activation import sigmoid
from kernels.triton.tiles import require_contiguous, tile_above
from kernels.weights import PLAIN_ROUTING, TINY_SHARE, RoutingRule

READ_TILE = 1024
"""Assignments that a program reads at a time."""
_UNUSED = tl.constexpr(UNUSED)
_TINY_SHARE = tl.constexpr(TINY_SHARE)


@triton.jit
def route_kernel(
    logits,
    choice_bias,
    share_scale,
    slot_mapping,
    chosen,
    weights,
    EXPERTS: tl.constexpr,
    PER_TOKEN: tl.constexpr,
    RENORMALISE: tl.constexpr,
    SIGMOID: tl.constexpr,
    SCALE: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_PER_TOKEN: tl.constexpr,
    GROUP_BEST: tl.constexpr,
):
    """The PER_TOKEN best of logits float32 [T, EXPERTS] into chosen int32 and weights float32 [T, PER_TOKEN].

    SIGMOID, SCALE, GROUPS, GROUPS_PER_TOKEN, GROUP_BEST: the rule, as in `kernels.weights.RoutingRule`. choice_bias,
    share_scale: float32 [EXPERTS], or None. Of equal scores the lower expert is chosen; a logit that is NaN makes the
    token's weights NaN. Grid: (T,). Oracle: `kernels.reference.route`, with `without_padding`.

    Places of a tile are those of experts, in groups that are filled up to the same power of two.
    """
    token = tl.program_id(0).to(tl.int64)
    IN_GROUP: tl.constexpr = EXPERTS // GROUPS
    GROUP_TILE: tl.constexpr = tile_of(IN_GROUP)
    place = tl.arange(0, GROUP_TILE * tile_of(GROUPS))
    expert = _expert_at(place, GROUPS, IN_GROUP, GROUP_TILE)
    exists = (place % GROUP_TILE < IN_GROUP) & (expert < EXPERTS)
    row = tl.load(logits + token * EXPERTS + expert, mask=exists, other=float("-inf"))
    if SIGMOID:
        scores = sigmoid(row)
    else:
        highest = tl.max(tl.where(row == row, row, float("-inf")), axis=0)
        scores = tl.exp(row - tl.where(highest > float("-inf"), highest, 0.0))
    whole = tl.sum(tl.where(exists, scores, 0.0), axis=0)
    broken = whole * 0.0  # NaN, or 0
    if choice_bias is not None:
        probable = scores if SIGMOID else scores / whole
        ranked = probable + tl.load(choice_bias + expert, mask=exists, other=0.0)
    elif GROUPS > 1:
        ranked = scores
    else:
        ranked = row
    left = tl.where(exists & (ranked == ranked), ranked, float("-inf"))
    if GROUPS > 1:
        left = _open_groups(left, tile_of(GROUPS), GROUP_TILE, GROUPS_PER_TOKEN, GROUP_BEST)
    used = tl.load(slot_mapping + token) >= 0
    rank = tl.arange(0, tile_of(PER_TOKEN))
    best = tl.zeros((tile_of(PER_TOKEN),), tl.int32)
    share = tl.zeros((tile_of(PER_TOKEN),), tl.float32)
    for each in tl.static_range(PER_TOKEN):
        found = tl.argmax(left, axis=0)
        best = tl.where(rank == each, _expert_at(found, GROUPS, IN_GROUP, GROUP_TILE).to(tl.int32), best)
        share = tl.where(rank == each, tl.sum(tl.where(place == found, scores, 0.0), axis=0), share)
        left = tl.where(place == found, float("-inf"), left)
    if RENORMALISE:
        whole = tl.sum(share, axis=0) + broken
        if SIGMOID:
            whole += _TINY_SHARE
    elif SIGMOID:
        whole = 1.0 + broken
    share = share / whole
    if SCALE != 1.0:
        share *= SCALE
    exists = rank < PER_TOKEN
    if share_scale is not None:
        share *= tl.load(share_scale + best, mask=exists, other=0.0)
    tl.store(chosen + token * PER_TOKEN + rank, tl.where(used, best, _UNUSED), mask=exists)
    tl.store(weights + token * PER_TOKEN + rank, share, mask=exists)


@triton.jit
def _expert_at(place, GROUPS: tl.constexpr, IN_GROUP: tl.constexpr, GROUP_TILE: tl.constexpr):
    if GROUPS == 1:
        return place
    else:
        return place // GROUP_TILE * IN_GROUP + place % GROUP_TILE


@triton.jit
def _open_groups(
    scores, GROUPS_TILE: tl.constexpr, GROUP_TILE: tl.constexpr, OPEN: tl.constexpr, GROUP_BEST: tl.constexpr
):
    """Scores [GROUPS_TILE x GROUP_TILE] within the OPEN groups whose GROUP_BEST best ones have the largest sum; -inf in
    the others."""
    left = tl.reshape(scores, (GROUPS_TILE, GROUP_TILE))
    member = tl.arange(0, GROUP_TILE)
    sums = tl.zeros((GROUPS_TILE,), tl.float32)
    for _ in tl.static_range(GROUP_BEST):
        found = tl.argmax(left, axis=1)
        sums += tl.max(left, axis=1)
        left = tl.where(member[None, :] == found[:, None], float("-inf"), left)
    group = tl.arange(0, GROUPS_TILE)
    is_open = tl.zeros((GROUPS_TILE,), tl.int1)
    for _ in tl.static_range(OPEN):
        found = tl.argmax(sums, axis=0)
        is_open |= group == found
        sums = tl.where(group == found, float("-inf"), sums)
    by_group = tl.reshape(scores, (GROUPS_TILE, GROUP_TILE))
    return tl.reshape(tl.where(is_open[:, None], by_group, float("-inf")), (GROUPS_TILE * GROUP_TILE,))


@triton.constexpr_function
def tile_of(count):
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


@triton.jit(do_not_specialize=["assignments"])
def count_kernel(chosen, counts, expert_tokens, assignments, TILE: tl.constexpr):
    """Assignments of each expert, counts int32 [experts], among chosen int32 [assignments]; and adds them to
    expert_tokens int64 [experts], unless that is None. Grid: (experts,)."""
    expert = tl.program_id(0)
    found = tl.zeros((TILE,), tl.int32)
    for start in range(0, assignments, TILE):
        at = start + tl.arange(0, TILE)
        found += (tl.load(chosen + at, mask=at < assignments, other=_UNUSED) == expert).to(tl.int32)
    count = tl.sum(found, axis=0)
    tl.store(counts + expert, count)
    if expert_tokens is not None:
        tl.store(expert_tokens + expert, tl.load(expert_tokens + expert) + count)


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


def route(
    logits: Tensor,
    per_token: int,
    renormalise: bool,
    slot_mapping: Tensor,
    rule: RoutingRule = PLAIN_ROUTING,
    choice_bias: Tensor | None = None,
    share_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`kernels.reference.route` with `without_padding`; experts int32."""
    require_contiguous(logits)
    tokens, experts = logits.shape
    chosen = torch.empty((tokens, per_token), dtype=torch.int32, device=logits.device)
    weights = torch.empty((tokens, per_token), dtype=torch.float32, device=logits.device)
    if tokens:
        route_kernel[(tokens,)](
            logits,
            choice_bias,
            share_scale,
            slot_mapping,
            chosen,
            weights,
            EXPERTS=experts,
            PER_TOKEN=per_token,
            RENORMALISE=renormalise,
            **rule_constexprs(rule),
            num_warps=1,
        )
    return chosen, weights


def rule_constexprs(rule: RoutingRule) -> dict[str, bool | int | float]:
    """The compile-time arguments of `route_kernel` that state the rule."""
    return {
        "SIGMOID": rule.scoring == "sigmoid",
        "SCALE": rule.scale,
        "GROUPS": rule.groups,
        "GROUPS_PER_TOKEN": rule.groups_per_token,
        "GROUP_BEST": rule.group_best,
    }


def align(chosen: Tensor, experts: int, tile: int, expert_tokens: Tensor | None = None) -> ExpertTiles:
    """`kernels.reference_experts.align` of chosen int32 [T, per_token]. Adds the tokens of each expert to
    `expert_tokens`, int64 [experts]."""
    assignments, device = chosen.numel(), chosen.device
    tiles = most_tiles(assignments, experts, tile)
    of_tiles = torch.empty((tiles,), dtype=torch.int32, device=device)
    places = torch.empty((tiles * tile,), dtype=torch.int32, device=device)
    counts = torch.empty((experts,), dtype=torch.int32, device=device)
    count_kernel[(experts,)](chosen, counts, expert_tokens, assignments, TILE=READ_TILE)
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
