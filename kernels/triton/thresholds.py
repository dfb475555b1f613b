"""The smallest scaled logit that top-k, top-p and min-p keep, without a sort. Oracle: `kernels.reference.threshold`.

Top-k and top-p are one question: the smallest logit of a row above which there is less weight than a target, each
logit weighing 1 and the target k, or each its probability and the target p of all that top-k keeps. A round of the
search counts the weight above eight pivots and goes on between the two around the answer, from at most 2^32 keys to
one in eleven rounds. Keys and weights are integers (`kernels.triton.exact`), so the search ends at the answer itself.

A round reads little of a row. The vocabulary lies in strips of 64 tokens, of which a first kernel finds the largest
logits, all strips in parallel; a round reads only strips whose largest logit is not below where the answer can be.
The first bound is the k-th largest of those, or, for top-p, so far below the largest logit that all tokens together
have no mass that matters.
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
TILE = 1024
SEARCH_WARPS = 16


@triton.jit
def uses_threshold(slot, noise_scale, top_k, top_p, min_p, vocab_size):
    """Whether a slot's draws need a threshold. The largest logit is kept by any, so a greedy draw needs none."""
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

    Grid: (tiles of STRIPS strips, R). Rows that need no threshold are left out.
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
def search_kernel(
    logits,
    row_slots,
    inverse_temperature,
    noise_scale,
    top_k,
    top_p,
    min_p,
    maxima,
    listed,
    thresholds,
    logits_stride,
    strips,
    vocab_size,
    STRIPS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The threshold of each row of logits [R, V], float32 [R]; -inf where it needs none. Grid: (R,).

    maxima: int32 [R, strips] as `strip_maxima_kernel` leaves it. listed: int32 [R, strips], room for lists of strips.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(row_slots + row)
    threshold = float("-inf")
    if uses_threshold(slot, noise_scale, top_k, top_p, min_p, vocab_size):
        logits, listed = logits + row * logits_stride, listed + row * strips
        scale = tl.load(inverse_temperature + slot)
        k, p, least = tl.load(top_k + slot), tl.load(top_p + slot), tl.load(min_p + slot)
        strip = tl.arange(0, STRIPS)
        tops = tl.load(maxima + row * strips + strip, mask=strip < strips, other=NO_KEY)
        highest = tl.max(tops).to(tl.int64)
        largest = key_value(highest.to(tl.int32))
        low, start = tl.full([], LOWEST_KEY, tl.int64), tl.full([], LOWEST_KEY, tl.int64)
        tied = tl.full([], 0, tl.int64)
        if k < vocab_size:
            if k <= strips:
                low = _kth_largest(tops, k, low, highest + 1)
            low, above = _search(logits, scale, largest, vocab_size, tops, listed, low, highest + 1, k, False, TILE)
            threshold = key_value(low.to(tl.int32))
            # Of the logits that equal the k-th, top-k's mass has as many as bring it to k.
            start, tied = low + 1, (k - above) * fixed_mass(threshold, largest)
        if p < 1.0:
            whole = tied + _mass_from(logits, scale, largest, vocab_size, tops, listed, start, TILE)
            target = tl.maximum(tl.ceil(p.to(tl.float64) * whole.to(tl.float64)).to(tl.int64), 1)
            # All tokens further below the largest have less than 1 - p of its own mass together.
            far = ordered_key(largest - tl.log(vocab_size / (1.0 - p)) - 1.0).to(tl.int64)
            low = tl.maximum(low, tl.minimum(far, highest))
            low, above = _search(logits, scale, largest, vocab_size, tops, listed, low, highest + 1, target, True, TILE)
            threshold = key_value(low.to(tl.int32))
        if least > 0.0:
            threshold = tl.maximum(threshold, largest + tl.log(least))
    tl.store(thresholds + row, threshold)


@triton.jit
def _kth_largest(keys, k, low, high):
    """The k-th largest of a tile of keys, which lies in [low, high), as int64."""
    above = tl.zeros_like(low)
    while high - low > 1:
        sums = tl.sum((keys[None, :] >= _pivots(low, high)[:, None]).to(tl.int32), axis=1)
        low, high, above = _narrow(low, high, above, sums.to(tl.int64), k)
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
    target,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The smallest key of a row above which there is less weight than the target, and that weight, both int64.

    The key lies in [low, high), and no key of the row is higher. `tops` are the largest keys of its strips.
    """
    above = tl.zeros_like(low)
    while high - low > 1:
        count = _list_strips(tops, low, listed)
        pivots = _pivots(low, high)
        sums = above + _weights(logits, scale, largest, vocab_size, listed, count, pivots, high, BY_MASS, TILE)
        low, high, above = _narrow(low, high, above, sums, target)
    return low, above


@triton.jit
def _mass_from(logits, scale, largest, vocab_size, tops, listed, start, TILE: tl.constexpr):
    """The mass of a row's keys from `start` on."""
    count = _list_strips(tops, start, listed)
    pivot = start.to(tl.int32) + tl.zeros([1], tl.int32)
    end = tl.full([], 2**31 - 1, tl.int64)
    return tl.sum(_weights(logits, scale, largest, vocab_size, listed, count, pivot, end, True, TILE))


@triton.jit
def _pivots(low, high):
    """Eight keys int32 from `low` on, at equal distances below `high`; both int64."""
    return (low + (high - low) * tl.arange(0, PIVOTS) // PIVOTS).to(tl.int32)


@triton.jit
def _narrow(low, high, above, sums, target):
    """The part of [low, high) between two pivots in which the answer lies, and the weight from its end on.

    `sums` int64 [8] is the weight from each pivot on, `above` that from `high` on. The answer is not below a pivot
    from which on the weight reaches the target, and below any other; it is never below the first one.
    """
    width = high - low
    reached = tl.maximum(tl.sum((sums >= target).to(tl.int64)), 1)
    next_sum = tl.sum(tl.where(tl.arange(0, PIVOTS) == reached, sums, 0))
    above = tl.where(reached == PIVOTS, above, next_sum)
    return low + width * (reached - 1) // PIVOTS, low + width * reached // PIVOTS, above


@triton.jit
def _list_strips(tops, low, listed):
    """Put the ids of the strips with a key from `low` on into `listed`, in order; gives how many there are."""
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
    """The weight in [pivot, end) of the first `count` strips of the list, int64, for each pivot int32."""
    sums = tl.zeros([pivots.shape[0], TILE], tl.int64)
    for first in range(0, count * STRIP, TILE):
        place = first + tl.arange(0, TILE)
        live = place < count * STRIP
        token = tl.load(listed + place // STRIP, mask=live, other=0) * STRIP + place % STRIP
        inside = live & (token < vocab_size)
        scaled = load_scaled(logits, token, inside, scale)
        key = ordered_key(scaled)
        weight = fixed_mass(scaled, largest) if BY_MASS else tl.full([TILE], 1, tl.int64)
        weight = tl.where(inside & (key < end.to(tl.int32)), weight, 0)
        sums += tl.where(key[None, :] >= pivots[:, None], weight[None, :], 0)
    return tl.sum(sums, axis=1)


def find_thresholds(logits: Tensor, columns: SlotSampling, row_slots: Tensor) -> Tensor:
    """The smallest scaled logit that each row of [R, V] keeps, float32 [R]; -inf for all, and for greedy rows."""
    rows, vocab_size = logits.shape
    strips = triton.cdiv(vocab_size, STRIP.value)
    maxima, listed = torch.empty((2, rows, strips), dtype=torch.int32, device=logits.device).unbind()
    thresholds = torch.empty(rows, dtype=torch.float32, device=logits.device)
    filters = (columns.inverse_temperature, columns.noise_scale, columns.top_k, columns.top_p, columns.min_p)
    sizes = (logits.stride(0), strips, vocab_size)
    strip_maxima_kernel[(triton.cdiv(strips, STRIPS_OF_PROGRAM), rows)](
        logits, row_slots, *filters, maxima, *sizes, STRIPS=STRIPS_OF_PROGRAM
    )
    search_kernel[(rows,)](
        logits,
        row_slots,
        *filters,
        maxima,
        listed,
        thresholds,
        *sizes,
        STRIPS=triton.next_power_of_2(strips),
        TILE=TILE,
        num_warps=SEARCH_WARPS,
    )
    return thresholds
