"""The randomness of sampling: a counter-based hash of (seed, position, token id).

A request gets the same noise in any batch, after a preemption, and on another replica. The hash is two rounds of
MurmurHash3's 32-bit finaliser (Appleby) over the token id, keyed by two words derived from (seed, position) with
SplitMix64. Every backend computes the same bits.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MASK_32 = (1 << 32) - 1
_MASK_64 = (1 << 64) - 1

SPLITMIX_STEP = 0x9E3779B97F4A7C15
SPLITMIX_A = 0xBF58476D1CE4E5B9
SPLITMIX_B = 0x94D049BB133111EB

GOLDEN_32 = 0x9E3779B1
MURMUR_A = 0x85EBCA6B
MURMUR_B = 0xC2B2AE35


def _splitmix64(x: int) -> int:
    """One output of SplitMix64 (Steele, Lea and Flood 2014) for state x."""
    x = (x + SPLITMIX_STEP) & _MASK_64
    x = ((x ^ (x >> 30)) * SPLITMIX_A) & _MASK_64
    x = ((x ^ (x >> 27)) * SPLITMIX_B) & _MASK_64
    return x ^ (x >> 31)


def noise_key(seed: int, position: int) -> tuple[int, int]:
    """Two 32-bit words for one draw. `position`: of the sampled token."""
    word = _splitmix64(_splitmix64(seed & _MASK_64) ^ position)
    return word & MASK_32, word >> 32


def mixed_seeds(seeds: Sequence[int]) -> npt.NDArray[np.uint64]:
    """The seeds' part of the hash for `noise_keys`, uint64 [R]."""
    return np.array([_splitmix64(seed & _MASK_64) for seed in seeds], dtype=np.uint64)


def noise_keys(mixed: npt.NDArray[np.uint64], positions: Sequence[int]) -> npt.NDArray[np.int64]:
    """`noise_key` of each pair of mixed seed and position: int64 [R, 2]."""
    x = (mixed ^ np.array(positions, dtype=np.uint64)) + np.uint64(SPLITMIX_STEP)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(SPLITMIX_A)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SPLITMIX_B)
    x ^= x >> np.uint64(31)
    return np.stack((x & np.uint64(MASK_32), x >> np.uint64(32)), axis=1).astype(np.int64)


def choice_seed(seed: int, choice: int) -> int:
    """The seed of choice `choice` of a request with n > 1. Choice 0 has the request's own seed."""
    if choice == 0:
        return seed
    return _splitmix64(_splitmix64(seed & _MASK_64) + choice)
