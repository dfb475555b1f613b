"""The smallest scaled logit that top-k, top-p and min-p keep, without a sort. Oracle: `kernels.reference.threshold`.

Top-k and top-p are one problem: the smallest logit of a row above which there is less weight than a target, where each
logit weighs 1 and the target is k, or each its probability and the target is p of all that top-k and min-p keep. A
round of the search computes the weight above eight pivots and continues between the two around the answer: eleven
rounds suffice for 2^32 keys. Keys and weights are integers (`kernels.triton.exact`), so the result is exact.

A round is one program's work, so it must read little of a row. The vocabulary is divided into strips of 64 tokens, of
which a first kernel finds the largest logits, all strips in parallel; a round reads only strips whose largest logit is
not below the lower bound of the answer. For top-k that is the k-th largest of those, and for min-p it is given. For
top-p alone a second kernel computes the first round, in parallel too, with pivots where the answer usually is: near the
largest logit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops import SlotSampling
from kernels.triton.exact import LOWEST_KEY, NO_KEY, fixed_mass, key_value, load_scaled, ordered_key

STRIP = tl.constexpr(64)
PIVOTS = tl.constexpr(8)

STRIPS_OF_PROGRAM = 64
COARSE_TILE = 2048
TILE = 2048
SEARCH_WARPS = 16


@triton.jit
def uses_threshold(slot, noise_scale, top_k, top_p, min_p, vocab_size):
    """Whether a slot's draws need a threshold. Every threshold keeps the largest logit, so a greedy draw needs none."""
    filters = (tl.load(top_k + slot) < vocab_size) | (tl.load(top_p + slot) < 1.0) | (tl.load(min_p + slot) > 0.0)
    return filters & (tl.load(noise_scale + slot) != 0.0)


@triton.jit
def strip_maxima_kernel(
    logits,
    row_slots,
    inverse_temperature,
    noise_scale,
    top_k,
    top_p,
    min_p,
    maxima,
    logits_stride,
    strips,
    vocab_size,
    STRIPS: tl.constexpr,
):
    """The largest key of each strip of scaled logits [R, V]: maxima int32 [R, strips].

    Grid: (tiles of STRIPS strips, R). Rows that need no threshold are skipped.
    """
    row = tl.program_id(1).to(tl.int64)
    slot = tl.load(row_slots + row)
    if uses_threshold(slot, noise_scale, top_k, top_p, min_p, vocab_size):
        strip = tl.program_id(0) * STRIPS + tl.arange(0, STRIPS)
        token = strip[:, None] * STRIP + tl.arange(0, STRIP)[None, :]
        scale = tl.load(inverse_temperature + slot)
        scaled = load_scaled(logits + row * logits_stride, token, token < vocab_size, scale)
        tl.store(maxima + row * strips + strip, tl.max(ordered_key(scaled), axis=1), mask=strip < strips)


@triton.jit
def coarse_masses_kernel(
    logits,
    row_slots,
    inverse_temperature,
    noise_scale,
    top_k,
    top_p,
    min_p,
    maxima,
    masses,
    logits_stride,
    strips,
    vocab_size,
    STRIPS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The mass of each tile of logits [R, V] from each of the coarse pivots up: masses int64 [R, tiles, 8].

    Grid: (tiles of V, R). Rows with top-k or min-p are skipped: their total mass is not needed.
    """
    row, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    slot = tl.load(row_slots + row)
    whole = (tl.load(top_k + slot) >= vocab_size) & (tl.load(min_p + slot) <= 0.0) & (tl.load(top_p + slot) < 1.0)
    if whole & uses_threshold(slot, noise_scale, top_k, top_p, min_p, vocab_size):
        largest = key_value(tl.max(_load_tops(maxima + row * strips, strips, STRIPS)))
        token = tile * TILE + tl.arange(0, TILE)
        inside = token < vocab_size
        scaled = load_scaled(logits + row * logits_stride, token, inside, tl.load(inverse_temperature + slot))
        reached = ordered_key(scaled)[None, :] >= _coarse_pivots(largest)[:, None]
        sums = tl.sum(tl.where(reached, fixed_mass(scaled, largest)[None, :], 0), axis=1)
        tl.store(masses + (row * tl.num_programs(0) + tile) * PIVOTS + tl.arange(0, PIVOTS), sums)


@triton.jit
def search_kernel(
    logits,
    row_slots,
    inverse_temperature,
    noise_scale,
    top_k,
    top_p,
    min_p,
    maxima,
    masses,
    listed,
    thresholds,
    logits_stride,
    strips,
    tiles,
    vocab_size,
    STRIPS: tl.constexpr,
    TILES: tl.constexpr,
    TILE: tl.constexpr,
):
    """The threshold of each row of logits [R, V], float32 [R]; -inf if it needs none. Grid: (R,).

    maxima: int32 [R, strips] from `strip_maxima_kernel`; masses: int64 [R, tiles, 8] from `coarse_masses_kernel`.
    listed: int32 [R, strips], scratch for lists of strips.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots + row)
    threshold = float("-inf")
    if uses_threshold(slot, noise_scale, top_k, top_p, min_p, vocab_size):
        logits, listed = logits + row * logits_stride, listed + row * strips
        scale = tl.load(inverse_temperature + slot)
        k, p, least = tl.load(top_k + slot), tl.load(top_p + slot), tl.load(min_p + slot)
        tops = _load_tops(maxima + row * strips, strips, STRIPS)
        highest = tl.max(tops)
        largest = key_value(highest)
        low, high = tl.full([], LOWEST_KEY, tl.int64), highest.to(tl.int64) + 1
        above, nothing = tl.zeros_like(low), tl.zeros_like(low)
        tied = tl.zeros_like(low)
        if k < vocab_size:
            low = _kth_largest(tops, k, low, high)
            low, above = _search(logits, scale, largest, vocab_size, tops, listed, low, high, nothing, k, False, TILE)
            threshold = key_value(low.to(tl.int32))
            # Of the logits that equal the k-th, top-k's mass has as many as bring it to k.
            tied = (k - above) * fixed_mass(threshold, largest)
        if least > 0.0:
            floor = largest + tl.log(least)
            if floor > threshold:
                # Its mass is that of all keys from it on, and so of all above the one below it.
                threshold, low = floor, ordered_key(floor).to(tl.int64) - 1
                tied = tl.zeros_like(low)
        if p < 1.0:
            if (k < vocab_size) | (least > 0.0):
                target = _share(p, _mass_above(logits, scale, largest, vocab_size, tops, listed, low, TILE) + tied)
                above = nothing
            else:
                pivots = _coarse_pivots(largest)
                sums = _coarse_sums(masses + row * tiles * PIVOTS, tiles, TILES)
                target = _share(p, tl.max(sums))
                low, high, above = _narrow(pivots, high, nothing, sums, target)
            # All tokens further below the largest have less than 1 - p of its own mass together.
            far = ordered_key(largest - tl.log(vocab_size / (1.0 - p)) - 1.0)
            low = tl.maximum(low, tl.minimum(far, highest).to(tl.int64))
            low, above = _search(logits, scale, largest, vocab_size, tops, listed, low, high, above, target, True, TILE)
            threshold = tl.maximum(threshold, key_value(low.to(tl.int32)))
    tl.store(thresholds + row, threshold)


@triton.jit
def _load_tops(maxima, strips, STRIPS: tl.constexpr):
    """The largest keys of a row's strips, NO_KEY past them."""
    strip = tl.arange(0, STRIPS)
    return tl.load(maxima + strip, mask=strip < strips, other=NO_KEY)


@triton.jit
def _share(p, whole):
    """The smallest mass that is p of the whole, at least one unit."""
    return tl.maximum(tl.ceil(p.to(tl.float64) * whole.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _coarse_pivots(largest):
    """The lowest key, then keys approaching that of the largest logit: 9.19, 6.75, ... 0.75, 0.19 below it."""
    pivot = tl.arange(0, PIVOTS)
    steps = (pivot - PIVOTS).to(tl.float32)
    return tl.where(pivot == 0, LOWEST_KEY, ordered_key(largest - steps * steps * 0.1875))


@triton.jit
def _coarse_sums(masses, tiles, TILES: tl.constexpr):
    """A row's mass from each coarse pivot up, summed over its tiles."""
    tile = tl.arange(0, TILES)[:, None]
    return tl.sum(tl.load(masses + tile * PIVOTS + tl.arange(0, PIVOTS)[None, :], mask=tile < tiles, other=0), axis=0)


@triton.jit
def _kth_largest(keys, k, low, high):
    """The k-th largest of a tile of keys below `high`; `low` if fewer than k keys reach it."""
    above = tl.zeros_like(low)
    while high - low > 1:
        pivots = _even_pivots(low, high)
        sums = tl.sum((keys[None, :] >= pivots[:, None]).to(tl.int32), axis=1)
        low, high, above = _narrow(pivots, high, above, sums.to(tl.int64), k)
    return low


@triton.jit
def _search(
    logits,
    scale,
    largest,
    vocab_size,
    tops,
    listed,
    low,
    high,
    above,
    target,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The smallest key of a row above which there is less weight than the target, and that weight, both int64.

    The key is in [low, high), and `above` is the weight from `high` up. `tops`: the largest keys of the strips.
    """
    while high - low > 1:
        count = _list_strips(tops, low, listed)
        pivots = _even_pivots(low, high)
        sums = above + _weights(logits, scale, largest, vocab_size, listed, count, pivots, high, BY_MASS, TILE)
        low, high, above = _narrow(pivots, high, above, sums, target)
    return low, above


@triton.jit
def _mass_above(logits, scale, largest, vocab_size, tops, listed, key, TILE: tl.constexpr):
    """The mass of a row's keys above one."""
    count = _list_strips(tops, key + 1, listed)
    pivot = tl.full([1], 1, tl.int32) + key.to(tl.int32)
    end = tl.full([], 2**31 - 1, tl.int64)
    return tl.sum(_weights(logits, scale, largest, vocab_size, listed, count, pivot, end, True, TILE))


@triton.jit
def _even_pivots(low, high):
    """Eight int32 keys from `low` up, equally spaced below `high`; both bounds int64."""
    return (low + (high - low) * tl.arange(0, PIVOTS) // PIVOTS).to(tl.int32)


@triton.jit
def _narrow(pivots, high, above, sums, target):
    """The two of the pivots and `high` that enclose the answer, and the weight from the upper one up; all int64.

    `sums` [8]: weight from each pivot up; `above`: from `high` up. The answer is at or above every pivot whose weight
    reaches the target, and below every other; it is never below the first pivot.
    """
    index = tl.arange(0, PIVOTS)
    reached = tl.maximum(tl.sum((sums >= target).to(tl.int32)), 1)
    low = tl.sum(tl.where(index == reached - 1, pivots, 0)).to(tl.int64)
    next_pivot = tl.sum(tl.where(index == reached, pivots, 0)).to(tl.int64)
    next_sum = tl.sum(tl.where(index == reached, sums, 0))
    return low, tl.where(reached == PIVOTS, high, next_pivot), tl.where(reached == PIVOTS, above, next_sum)


@triton.jit
def _list_strips(tops, low, listed):
    """Write the ids of the strips with a key at or above `low` to `listed`, in order; returns their number."""
    chosen = tops >= low.to(tl.int32)
    place = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    # All threads have read the last list before this one is written, and see it before they read.
    tl.debug_barrier()
    tl.store(listed + place, tl.arange(0, tops.shape[0]), mask=chosen)
    tl.debug_barrier()
    return tl.sum(chosen.to(tl.int32))


@triton.jit
def _weights(
    logits,
    scale,
    largest,
    vocab_size,
    listed,
    count,
    pivots,
    end,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The weight in [pivot, end) of the first `count` strips of the list, int64, for each int32 pivot."""
    sums = tl.zeros([pivots.shape[0]], tl.int64)
    for first in range(0, count * STRIP, TILE):
        place = first + tl.arange(0, TILE)
        live = place < count * STRIP
        token = tl.load(listed + place // STRIP, mask=live, other=0) * STRIP + place % STRIP
        inside = live & (token < vocab_size)
        scaled = load_scaled(logits, token, inside, scale)
        key = ordered_key(scaled)
        weight = fixed_mass(scaled, largest) if BY_MASS else tl.full([TILE], 1, tl.int64)
        weight = tl.where(inside & (key < end.to(tl.int32)), weight, 0)
        sums += tl.sum(tl.where(key[None, :] >= pivots[:, None], weight[None, :], 0), axis=1)
    return sums


def find_thresholds(logits: Tensor, columns: SlotSampling, row_slots: Tensor) -> Tensor:
    """The smallest scaled logit that each row of [R, V] keeps, float32 [R]; -inf if it keeps all, and for greedy
    rows."""
    rows, vocab_size = logits.shape
    strips, tiles = triton.cdiv(vocab_size, STRIP.value), triton.cdiv(vocab_size, COARSE_TILE)
    device = logits.device
    # Each allocated by itself, and so aligned whatever the rows: else a kernel would be compiled again while serving.
    maxima = torch.empty((rows, strips), dtype=torch.int32, device=device)
    listed = torch.empty((rows, strips), dtype=torch.int32, device=device)
    masses = torch.empty((rows, tiles, PIVOTS.value), dtype=torch.int64, device=device)
    thresholds = torch.empty(rows, dtype=torch.float32, device=device)
    columns_of_filters = (columns.inverse_temperature, columns.noise_scale, columns.top_k, columns.top_p, columns.min_p)
    row_arguments = (logits, row_slots, *columns_of_filters, maxima)
    stride, all_strips = logits.stride(0), triton.next_power_of_2(strips)
    strip_maxima_kernel[(triton.cdiv(strips, STRIPS_OF_PROGRAM), rows)](
        *row_arguments, stride, strips, vocab_size, STRIPS=STRIPS_OF_PROGRAM
    )
    coarse_masses_kernel[(tiles, rows)](
        *row_arguments,
        masses,
        stride,
        strips,
        vocab_size,
        STRIPS=all_strips,
        TILE=COARSE_TILE,
        enable_fp_fusion=False,  # a logit weighs the same in both kernels to the last bit
    )
    search_kernel[(rows,)](
        *row_arguments,
        masses,
        listed,
        thresholds,
        stride,
        strips,
        tiles,
        vocab_size,
        STRIPS=all_strips,
        TILES=triton.next_power_of_2(tiles),
        TILE=TILE,
        num_warps=SEARCH_WARPS,
        enable_fp_fusion=False,
    )
    return thresholds
