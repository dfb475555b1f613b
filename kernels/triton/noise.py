"""Sampling noise on the device: the bits of `kernels.noise`, and Gumbel noise from them.

Arithmetic is modulo 2^32 and 2^64 throughout, declared to Triton by `sanitize_overflow`.
"""

import triton
import triton.language as tl

from kernels import noise

_MASK_32 = tl.constexpr(noise.MASK_32)
_GOLDEN_32 = tl.constexpr(noise.GOLDEN_32)
_MURMUR_A = tl.constexpr(noise.MURMUR_A)
_MURMUR_B = tl.constexpr(noise.MURMUR_B)
_SPLITMIX_STEP = tl.constexpr(noise.SPLITMIX_STEP)
_SPLITMIX_A = tl.constexpr(noise.SPLITMIX_A)
_SPLITMIX_B = tl.constexpr(noise.SPLITMIX_B)


@triton.jit
def noise_key(seed, position):
    """Two uint32 words from int64 seed and position. Oracle: `kernels.noise.noise_key`."""
    word = _splitmix64(_splitmix64(seed.to(tl.uint64)) ^ position.to(tl.uint64))
    return word.to(tl.uint32), (word >> 32).to(tl.uint32)


@triton.jit
def _splitmix64(x):
    x = tl.add(x, _SPLITMIX_STEP, sanitize_overflow=False)
    x = tl.mul(x ^ (x >> 30), _SPLITMIX_A, sanitize_overflow=False)
    x = tl.mul(x ^ (x >> 27), _SPLITMIX_B, sanitize_overflow=False)
    return x ^ (x >> 31)


@triton.jit
def gumbel_noise(tokens, first_word, second_word):
    """Standard Gumbel noise float32 of token ids int32, keyed by two uint32 words.

    Oracle: `kernels.reference.gumbel_noise`.
    """
    mixed = tl.mul(tokens.to(tl.uint32), _GOLDEN_32, sanitize_overflow=False)
    mixed = _murmur_finalise(tl.add(mixed, first_word, sanitize_overflow=False))
    return gumbel_of_hash(_murmur_finalise(mixed ^ second_word))


@triton.jit
def gumbel_of_hash(mixed):
    """-log(-log(1 - u)) of u = (h + 0.5) / 2^32, for hashes h uint32.

    -log(1 - u) is computed as u x log(w) / (w - 1), with w being 1 - u rounded to float32: the quotient hardly changes
    where rounding moves w, and u is exact to the last place however small it is. So is w for u near 1, as it is
    computed from the hash's complement.
    """
    uniform = (mixed.to(tl.float32) + 0.5) * 2.0**-32
    rest = ((mixed ^ _MASK_32).to(tl.float32) + 0.5) * 2.0**-32
    below_one = tl.where(rest < 1.0, rest, 0.5)
    steepness = tl.where(rest < 1.0, tl.log(below_one) / (below_one - 1.0), 1.0)
    return -tl.log(uniform * steepness)


@triton.jit
def _murmur_finalise(x):
    """MurmurHash3's 32-bit finaliser of uint32."""
    x = tl.mul(x ^ (x >> 16), _MURMUR_A, sanitize_overflow=False)
    x = tl.mul(x ^ (x >> 13), _MURMUR_B, sanitize_overflow=False)
    return x ^ (x >> 16)
