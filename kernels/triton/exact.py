"""What makes reductions over a vocabulary exact, and so the same in any order: integers in place of floats.

A float32 becomes an int32 that orders as it does, and a probability a multiple of 2^-44. Sums and comparisons of
those do not depend on tiles, on warps, or on which other rows are there.
"""

import triton
import triton.language as tl

LOWEST_KEY = tl.constexpr(-2139095041)
"""The ordered key of -inf: no number has a smaller one."""

NO_KEY = tl.constexpr(-(2**31))
"""Smaller than any key."""

MASS_ONE = tl.constexpr(2.0**44)
"""Units of mass in a probability of 1. 2^18 tokens of the largest one fit an int64."""


@triton.jit
def ordered_key(x):
    """An int32 for each float32 that is not NaN, ordered as they are."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def key_value(key):
    """The float32 of an ordered key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def fixed_mass(x, largest):
    """exp(x - largest), at most 1, as int64 in units of 2^-44, rounded down. x is not NaN; -inf has no mass.

    Where `largest` is not finite, it counts as 0.
    """
    finite = (largest > float("-inf")) & (largest < float("inf"))
    below = tl.minimum(x - tl.where(finite, largest, 0.0), 0.0)
    return (tl.exp(below) * MASS_ONE).to(tl.int64)


@triton.jit
def load_scaled(row, tokens, inside, inverse_temperature):
    """Logits of a row (its pointer) at `tokens`, times the inverse temperature, float32; -inf outside and for NaN."""
    logits = tl.load(row + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.where(logits == logits, logits, float("-inf")) * inverse_temperature
