"""Sampling on a CPU: the meaning of `kernels.reference`, with the work cut to what a step's rows ask for.

numpy does the hashing and the argmax: its unsigned 32-bit arithmetic and its argmax are vectorised, torch's are not.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.noise import GOLDEN_32, MURMUR_A, MURMUR_B
from kernels.ops import SamplingColumns

_Words = npt.NDArray[np.uint32]

_CANDIDATES = 1024
"""Top logits looked at before a whole row is sorted: nearly every nucleus lies within them."""

_LARGEST_UNIFORM = 1.0 - 2.0**-24
"""Largest float32 below 1: keeps the noise of the unluckiest token finite."""


def sample(logits: Tensor, columns: SamplingColumns) -> Tensor:
    """`kernels.reference.sample`; overwrites `logits`."""
    noisy = columns.noise_scale > 0
    if noisy.any():
        scaled = logits.mul_(columns.inverse_temperature[:, None])
        filtered = (columns.top_k < logits.shape[-1]) | (columns.top_p < 1) | (columns.min_p > 0)
        for row in torch.nonzero(noisy & filtered).flatten().tolist():
            scaled[row].masked_fill_(scaled[row] < _threshold(scaled[row], columns, row), -torch.inf)
        for row in torch.nonzero(noisy).flatten().tolist():
            first, second = columns.keys[row].tolist()
            scaled[row].add_(_gumbel_noise(first, second, logits.shape[-1]))
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def _threshold(scaled: Tensor, columns: SamplingColumns, row: int) -> float:
    """`kernels.reference.threshold` of one row [V], looking at the largest logits first."""
    vocab_size = scaled.shape[-1]
    top_k, top_p, min_p = int(columns.top_k[row]), float(columns.top_p[row]), float(columns.min_p[row])
    largest = float(scaled.max())
    lowest = -float("inf")
    if top_k < vocab_size or top_p < 1:
        count = min(max(_CANDIDATES, top_k if top_k < vocab_size else 0), vocab_size)
        lowest = _nucleus_floor(scaled, count, top_k, top_p)
    return max(lowest, largest + float(np.log(np.float32(min_p))) if min_p > 0 else lowest)


def _nucleus_floor(scaled: Tensor, count: int, top_k: int, top_p: float) -> float:
    """The smallest logit that top-k and top-p keep, from the `count` largest; from all where those do not reach."""
    vocab_size = scaled.shape[-1]
    ordered = scaled.topk(count).values[:top_k]
    # With top-k on, its survivors are all in `ordered`, and the mass is theirs alone.
    total = (ordered if top_k < vocab_size else scaled).logsumexp(dim=-1)
    probabilities = (ordered - total).exp()
    mass_before = probabilities.cumsum(dim=-1) - probabilities
    if top_p >= 1:
        return float(ordered[-1])
    reached = int((mass_before < top_p).sum())
    if reached == len(ordered) and len(ordered) < min(top_k, vocab_size):
        return _nucleus_floor(scaled, vocab_size, top_k, top_p)
    return float(ordered[max(reached, 1) - 1])


def _gumbel_noise(first: int, second: int, vocab_size: int) -> Tensor:
    """One row of `kernels.reference.gumbel_noise`, float32 [V], with the same bits of randomness."""
    words: _Words = np.arange(vocab_size, dtype=np.uint32)
    words *= np.uint32(GOLDEN_32)
    words += np.uint32(first)
    _murmur_finalise(words)
    words ^= np.uint32(second)
    _murmur_finalise(words)
    uniform = torch.from_numpy(words.astype(np.float32)).add_(0.5).mul_(2.0**-32).clamp_(max=_LARGEST_UNIFORM)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def _murmur_finalise(words: _Words) -> None:
    """MurmurHash3's 32-bit finaliser, in place."""
    words ^= words >> np.uint32(16)
    words *= np.uint32(MURMUR_A)
    words ^= words >> np.uint32(13)
    words *= np.uint32(MURMUR_B)
    words ^= words >> np.uint32(16)
