"""Samples a step's tokens: the Gumbel-max trick over tiles of the vocabulary, then over the tiles.

Oracle: `kernels.reference.sample_slots`. Nothing here synchronises with the device
or depends on its data except through masks and branches inside kernels, so all of it can be captured in a graph. A
row's token does not depend on the other rows: reductions compare, or sum integers.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.ops import FiniteTokens, SamplingColumns, SlotDraws, SlotSampling
from kernels.step import ROW_WORDS, DrawnPlaces
from kernels.triton.exact import load_scaled
from kernels.triton.noise import gumbel_noise, noise_key
from kernels.triton.penalties import penalise
from kernels.triton.thresholds import find_thresholds

TILE = 2048
FLAGS = 256

_EMPTY = tl.constexpr(0)
_SOUND = tl.constexpr(1)
_BROKEN = tl.constexpr(2)
"""State of a tile's logits: all -inf; finite ones among them; NaN or +inf among them. A row's state is its worst
tile's."""


@triton.jit
def draw_tiles_kernel(
    logits,
    row_slots,
    inverse_temperature,
    noise_scale,
    seeds,
    positions,
    keys,
    thresholds,
    scores,
    tokens,
    states,
    logits_stride,
    scores_stride,
    vocab_size,
    TILE: tl.constexpr,
):
    """The best score of each tile of logits [R, V], its token, and the tile's state, all [R, tiles].

    A score is the scaled logit plus noise. Noise comes from keys int64 [R, 2], or where there are none from the
    slot's seed and positions int64 [R]. Tokens below thresholds float32 [R] have no score; without thresholds all
    have one. Grid: (tiles of V, R).
    """
    row, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    slot = tl.load(row_slots + row)
    token = tile * TILE + tl.arange(0, TILE)
    inside = token < vocab_size
    row_logits = logits + row * logits_stride
    plain = tl.load(row_logits + token, mask=inside, other=float("-inf")).to(tl.float32)
    broken = (plain != plain) | (plain == float("inf"))
    state = tl.where(broken, _BROKEN, tl.where(plain > float("-inf"), _SOUND, _EMPTY))
    score = load_scaled(row_logits, token, inside, tl.load(inverse_temperature + slot))
    if thresholds is not None:
        score = tl.where(score >= tl.load(thresholds + row), score, float("-inf"))
    scale = tl.load(noise_scale + slot)
    # Noise is most of the work: greedy rows need none, nor do tiles of which nothing is kept.
    if (scale != 0.0) & (tl.max(score) > float("-inf")):
        if keys is not None:
            first_word, second_word = tl.load(keys + row * 2).to(tl.uint32), tl.load(keys + row * 2 + 1).to(tl.uint32)
        else:
            first_word, second_word = noise_key(tl.load(seeds + slot), tl.load(positions + row))
        score += gumbel_noise(token, first_word, second_word) * scale
    best = tl.max(score)
    # The smallest id wins a tie. What lies past the vocabulary never does: ids in it are smaller.
    place = row * scores_stride + tile
    tl.store(scores + place, best)
    tl.store(tokens + place, tl.min(tl.where(score == best, token, 2147483647)))
    tl.store(states + place, tl.max(state))


@triton.jit
def draw_rows_kernel(
    scores,
    tokens,
    states,
    finite_tokens,
    query_starts,
    rows,
    lines,
    last,
    sequences,
    ids,
    sound,
    finite,
    tiles,
    length,
    sequences_stride,
    TILES: tl.constexpr,
    FLAGS: tl.constexpr,
    ROW: tl.constexpr,
):
    """The token of each draw, int64 [D], and whether it is sound, from its tiles [D, tiles]. Grid: (D,).

    rows: int32 [D], the row of each draw; none: draw d follows row d. With finite_tokens int8 [T] and query_starts
    int32 [R + 1], no draw of a row is sound unless the flags of all its tokens are set; finite [D] says whether they
    are. FLAGS are read at once. With lines int32 [R, ROW], the draw last [R] of a row, or its only one, is stored in
    sequences int32 [S, length], as by `kernels.reference_step.store_drawn`.
    """
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    place = row * tiles + tile
    score = tl.load(scores + place, mask=inside, other=float("-inf"))
    token = tl.load(tokens + place, mask=inside, other=2147483647)
    state = tl.max(tl.load(states + place, mask=inside, other=_EMPTY))
    best = tl.min(tl.where(score == tl.max(score), token, 2147483647))
    tl.store(ids + row, best.to(tl.int64))
    of_row = row
    if rows is not None:
        of_row = tl.load(rows + row).to(tl.int64)
    if lines is not None:
        line = lines + of_row * ROW
        slot = tl.load(line).to(tl.int64)
        position = tl.load(line + 1) + tl.load(line + 2)
        stored = (slot >= 0) & (tl.load(line + 4) != 0) & (position < length)
        if last is not None:
            stored &= tl.load(last + of_row) == row
        tl.store(sequences + slot * sequences_stride + position, best, mask=stored)
    is_sound = state == _SOUND
    if finite_tokens is not None:
        end = tl.load(query_starts + of_row + 1)
        broken = tl.zeros([FLAGS], dtype=tl.int32)
        for first in range(tl.load(query_starts + of_row), end, FLAGS):
            token_index = first + tl.arange(0, FLAGS)
            flags = tl.load(finite_tokens + token_index, mask=token_index < end, other=1)
            broken |= 1 - flags.to(tl.int32)
        is_finite = tl.max(broken) == 0
        is_sound &= is_finite
        tl.store(finite + row, is_finite)
    tl.store(sound + row, is_sound)


def sample_slots(
    logits: Tensor,
    columns: SlotSampling,
    row_slots: Tensor,
    positions: Tensor,
    *,
    uses_thresholds: bool,
    uses_penalties: bool,
    hidden: FiniteTokens | None = None,
    places: DrawnPlaces | None = None,
) -> SlotDraws:
    """`kernels.reference.sample_slots` of logits [R, V] of any float dtype, with rows at any stride. `places`: where
    the tokens are stored, as by `kernels.reference_step.store_drawn`; None: nowhere.

    Unused features are not launched: `uses_thresholds`: a request of the step has top-k, top-p or min-p;
    `uses_penalties`: one has a penalty. The id of a row that is not sound is an arbitrary valid token.
    """
    if uses_penalties:
        penalise(logits, columns, row_slots)
    thresholds = find_thresholds(logits, columns, row_slots) if uses_thresholds else None
    return _draw(logits, columns, row_slots, positions, None, thresholds, hidden, places)


def sample(logits: Tensor, columns: SamplingColumns) -> Tensor:
    """`kernels.reference.sample`, with given keys and one line of columns for each row."""
    rows = logits.shape[0]
    neutral = torch.zeros(rows, device=logits.device)
    row_slots = torch.arange(rows, dtype=torch.int32, device=logits.device)
    slots = SlotSampling(
        inverse_temperature=columns.inverse_temperature,
        noise_scale=columns.noise_scale,
        top_p=columns.top_p,
        min_p=columns.min_p,
        repetition_penalty=neutral + 1,
        presence_penalty=neutral,
        frequency_penalty=neutral,
        top_k=columns.top_k.int(),
        seeds=columns.keys[:, 0],
        counts=neutral.int().expand(1, rows),
    )
    # Whether a row has thresholds is known to the device alone; rows without leave their kernels at once.
    thresholds = find_thresholds(logits, slots, row_slots)
    return _draw(logits, slots, row_slots, None, columns.keys, thresholds).ids


def _draw(
    logits: Tensor,
    columns: SlotSampling,
    row_slots: Tensor,
    positions: Tensor | None,
    keys: Tensor | None,
    thresholds: Tensor | None,
    hidden: FiniteTokens | None = None,
    places: DrawnPlaces | None = None,
) -> SlotDraws:
    rows, vocab_size = logits.shape
    of_draws = next((each.rows for each in (hidden, places) if each is not None), None)
    tiles = triton.cdiv(vocab_size, TILE)
    scores = torch.empty((rows, tiles), dtype=torch.float32, device=logits.device)
    # Each allocated by itself, and so aligned whatever the rows: else a kernel would be compiled again while serving.
    tokens = torch.empty((rows, tiles), dtype=torch.int32, device=logits.device)
    states = torch.empty((rows, tiles), dtype=torch.int32, device=logits.device)
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    sound = torch.empty(rows, dtype=torch.bool, device=logits.device)
    finite = None if hidden is None else torch.empty_like(sound)
    draw_tiles_kernel[(tiles, rows)](
        logits,
        row_slots,
        columns.inverse_temperature,
        columns.noise_scale,
        columns.seeds,
        positions,
        keys,
        thresholds,
        scores,
        tokens,
        states,
        logits.stride(0),
        tiles,
        vocab_size,
        TILE=TILE,
        # Products fused with sums would round otherwise in one form of the kernel than in another, and which one
        # a row gets depends on whether some other row has a threshold.
        enable_fp_fusion=False,
    )
    draw_rows_kernel[(rows,)](
        scores,
        tokens,
        states,
        None if hidden is None else hidden.finite,
        None if hidden is None else hidden.query_starts,
        of_draws,
        None if places is None else places.lines,
        None if places is None else places.last,
        None if places is None else places.tokens,
        ids,
        sound,
        finite,
        tiles,
        0 if places is None else places.tokens.shape[1],
        0 if places is None else places.tokens.stride(0),
        TILES=triton.next_power_of_2(tiles),
        FLAGS=FLAGS,
        ROW=ROW_WORDS,
    )
    return SlotDraws(ids, sound, finite)
