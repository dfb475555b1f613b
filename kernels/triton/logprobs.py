"""Log-probabilities and ranks of tokens, for the rows that request them. Oracle: `kernels.reference.token_logprobs`.

A tile's mass is a sum of integers relative to its own largest logit; a row's is the sum of its tiles', in fixed order.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.exact import MASS_ONE, fixed_mass

TILE = 2048


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """For one token of each row: the row's log-sum-exp and the token's log-probability, float32 [n]; ranks int64
    [n]."""

    normalisers: Tensor
    logprobs: Tensor
    ranks: Tensor


@triton.jit
def measure_tiles_kernel(
    logits, rows, tokens, maxima, masses, larger, logits_stride, tiles, vocab_size, TILE: tl.constexpr
):
    """For rows int64 [n] of logits [R, V] with tokens int64 [n], of each tile the largest logit (float32), the mass
    relative to it (int64), and how many logits exceed the token's (int32): all [n, tiles]. Grid: (tiles of V, n).
    """
    entry, tile = tl.program_id(1).to(tl.int64), tl.program_id(0)
    row = logits + tl.load(rows + entry) * logits_stride
    token = tile * TILE + tl.arange(0, TILE)
    logit = tl.load(row + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
    logit = tl.where(logit == logit, logit, float("-inf"))
    chosen = tl.load(row + tl.load(tokens + entry)).to(tl.float32)
    largest = tl.max(logit)
    place = entry * tiles + tile
    tl.store(maxima + place, largest)
    tl.store(masses + place, tl.sum(fixed_mass(logit, largest)))
    tl.store(larger + place, tl.sum((logit > chosen).to(tl.int32)))


@triton.jit
def measure_rows_kernel(
    logits,
    rows,
    tokens,
    maxima,
    masses,
    larger,
    normalisers,
    logprobs,
    ranks,
    logits_stride,
    tiles,
    TILES: tl.constexpr,
):
    """Combine the tiles [n, tiles] of each entry. Grid: (n,)."""
    entry = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    inside = tile < tiles
    place = entry * tiles + tile
    tile_largest = tl.load(maxima + place, mask=inside, other=float("-inf"))
    mass = tl.load(masses + place, mask=inside, other=0).to(tl.float32) / MASS_ONE
    largest = tl.max(tile_largest)
    base = tl.where((largest > float("-inf")) & (largest < float("inf")), largest, 0.0)
    whole = tl.sum(mass * tl.exp(tl.minimum(tile_largest - base, 0.0)))
    normaliser = base + tl.log(whole)
    chosen = tl.load(logits + tl.load(rows + entry) * logits_stride + tl.load(tokens + entry)).to(tl.float32)
    tl.store(normalisers + entry, normaliser)
    tl.store(logprobs + entry, chosen - normaliser)
    rank = tl.sum(tl.load(larger + place, mask=inside, other=0)) + 1
    tl.store(ranks + entry, rank.to(tl.int64))


def token_logprobs(logits: Tensor, rows: Tensor, tokens: Tensor) -> TokenLogprobs:
    """For tokens int64 [n] in rows int64 [n] of logits [R, V]. Undefined for rows whose logits are not finite."""
    entries, vocab_size = rows.shape[0], logits.shape[1]
    tiles = triton.cdiv(vocab_size, TILE)
    device = logits.device
    maxima = torch.empty((entries, tiles), dtype=torch.float32, device=device)
    masses = torch.empty((entries, tiles), dtype=torch.int64, device=device)
    larger = torch.empty((entries, tiles), dtype=torch.int32, device=device)
    # Each allocated by itself, and so aligned whatever the rows: else a kernel would be compiled again while serving.
    normalisers = torch.empty(entries, dtype=torch.float32, device=device)
    logprobs = torch.empty(entries, dtype=torch.float32, device=device)
    ranks = torch.empty(entries, dtype=torch.int64, device=device)
    measure_tiles_kernel[(tiles, entries)](
        logits, rows, tokens, maxima, masses, larger, logits.stride(0), tiles, vocab_size, TILE=TILE
    )
    measure_rows_kernel[(entries,)](
        logits,
        rows,
        tokens,
        maxima,
        masses,
        larger,
        normalisers,
        logprobs,
        ranks,
        logits.stride(0),
        tiles,
        TILES=triton.next_power_of_2(tiles),
    )
    return TokenLogprobs(normalisers, logprobs, ranks)
