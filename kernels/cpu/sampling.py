"""Sampling on a CPU as defined by `kernels.reference`, with only the work that a step's rows need.

Greedy rows are an argmax. A row with thresholds searches its floor among its largest logits and computes noise only for
the tokens above it. Selection, hashing and comparison use numpy, which vectorises them and torch does not; logarithms
use torch for the same reason.
"""

from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.noise import GOLDEN_32, MURMUR_A, MURMUR_B
from kernels.ops import SamplingColumns

_Floats = npt.NDArray[np.float32]
_Words = npt.NDArray[np.uint32]

_CANDIDATES = 1024
"""Largest logits examined first: nearly every nucleus ends within them."""

_LARGEST_UNIFORM = 1.0 - 2.0**-24
"""Largest float32 below 1; keeps the smallest noise finite."""


def mask_logits(logits: Tensor, bitmask: Tensor) -> None:
    """`kernels.reference.mask_logits`. Unpacks bits to bytes, which numpy processes in vectors."""
    bits = np.unpackbits(bitmask.numpy().view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
    np.copyto(logits.numpy(), -np.inf, where=bits == 0)


def sample(logits: Tensor, columns: SamplingColumns) -> Tensor:
    """`kernels.reference.sample`; overwrites the logits of rows that are not greedy."""
    return torch.from_numpy(_chosen_columns(logits, _all_tokens(logits.shape[-1]), columns))


def sample_among(logits: Tensor, token_ids: Tensor, columns: SamplingColumns) -> Tensor:
    """`kernels.reference.sample_among`; overwrites the logits of rows that are not greedy."""
    ids = token_ids.numpy()
    return torch.from_numpy(ids[_chosen_columns(logits, ids.astype(np.uint32), columns)])


@cache
def _all_tokens(vocab_size: int) -> _Words:
    return np.arange(vocab_size, dtype=np.uint32)


def _chosen_columns(logits: Tensor, token_ids: _Words, columns: SamplingColumns) -> npt.NDArray[np.int64]:
    rows: _Floats = logits.numpy()
    chosen: npt.NDArray[np.int64] = rows.argmax(axis=-1)
    noisy = torch.nonzero(columns.noise_scale).flatten().tolist()
    if noisy:
        inverse_temperature = columns.inverse_temperature.tolist()
        thresholds = zip(columns.top_k.tolist(), columns.top_p.tolist(), columns.min_p.tolist(), strict=True)
        filters = list(thresholds)
        keys = columns.keys.tolist()
        for row in noisy:
            scaled = rows[row]
            scaled *= np.float32(inverse_temperature[row])
            chosen[row] = _draw(scaled, token_ids, _floor(scaled, *filters[row]), keys[row])
    return chosen


def _draw(scaled: _Floats, token_ids: _Words, floor: float, key: tuple[int, int]) -> int:
    """Column of the largest sum of logit and noise among those not below the floor. `token_ids`: of the columns."""
    if floor == -np.inf:
        scaled += gumbel_noise(token_ids.copy(), key)
        return int(scaled.argmax())
    candidates = np.flatnonzero(scaled >= floor)
    if len(candidates) == 1:
        return int(candidates[0])
    return int(candidates[(scaled[candidates] + gumbel_noise(token_ids[candidates], key)).argmax()])


def _floor(scaled: _Floats, top_k: int, top_p: float, min_p: float) -> float:
    """`kernels.reference.threshold` of one row [V]; -inf if nothing is dropped."""
    kept = scaled
    if min_p > 0:
        kept = kept[kept >= kept.max() + np.log(np.float32(min_p))]
    if top_k < len(kept):
        kept = np.partition(kept, -top_k)[-top_k:]
    if top_p < 1 and len(kept):
        return _nucleus_floor(kept, top_p)
    return float(kept.min()) if len(kept) < len(scaled) else -np.inf


def _nucleus_floor(values: _Floats, top_p: float) -> float:
    """The smallest of the values that, in descending order, begin below `top_p` of the total mass.

    Selection by mass: partition after the few largest values, then by halves, and continue in the part in which the
    mass is reached; only a short rest is sorted.
    """
    largest = values.max()
    target = top_p * _mass(values, largest)
    above = 0.0
    split = len(values) - _CANDIDATES
    while split > 0:
        parts = np.partition(values, split)
        upper = _mass(parts[split:], largest)
        if above + upper >= target:
            values = parts[split:]
        else:
            above += upper
            values = parts[:split]
        split = len(values) // 2 if len(values) > _CANDIDATES else 0
    ordered = np.sort(values)[::-1]
    reached = above + np.cumsum(np.exp(ordered - largest), dtype=np.float64)
    return float(ordered[np.searchsorted(reached[:-1], target)])


def _mass(values: _Floats, largest: np.float32) -> float:
    return float(np.exp(values - largest).sum(dtype=np.float64))


def gumbel_noise(token_ids: _Words, key: tuple[int, int]) -> _Floats:
    """`kernels.reference.gumbel_noise` of some tokens of one row, to the bit. Overwrites `token_ids`."""
    words = token_ids
    words *= np.uint32(GOLDEN_32)
    words += np.uint32(key[0])
    _murmur_finalise(words)
    words ^= np.uint32(key[1])
    _murmur_finalise(words)
    uniform = torch.from_numpy(words.astype(np.float32)).add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_UNIFORM)
    noise: _Floats = uniform.neg_().log1p_().neg_().log_().neg_().numpy()
    return noise


def _murmur_finalise(words: _Words) -> None:
    """MurmurHash3's 32-bit finaliser, in place."""
    words ^= words >> np.uint32(16)
    words *= np.uint32(MURMUR_A)
    words ^= words >> np.uint32(13)
    words *= np.uint32(MURMUR_B)
    words ^= words >> np.uint32(16)
