"""Exact reductions over a vocabulary in integers, whose result does not depend on the order.

A float32 becomes an int32 of the same order, and a probability a multiple of 2^-44. Sums and comparisons of those do
not depend on tiles, warps, or other rows.
"""

import triton
import triton.language as tl

LOWEST_KEY = tl.constexpr(-2139095041)
"""The ordered key of -inf, the smallest of any number."""

NO_KEY = tl.constexpr(-(2**31))
"""A value smaller than any key."""

MASS_ONE = tl.constexpr(2.0**44)
"""Units of mass in a probability of 1. An int64 holds the sum of 2^18 tokens of probability 1."""


@triton.jit
def ordered_key(x):
    """An int32 for each float32 that is not NaN, in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def key_value(key):
    """The float32 of an ordered key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def fixed_mass(x, largest):
    """exp(x - largest), at most 1, as int64 in units of 2^-44, rounded down. x is not NaN; -inf has mass 0.

    A `largest` that is not finite counts as 0.
    """
    finite = (largest > float("-inf")) & (largest < float("inf"))
    below = tl.minimum(x - tl.where(finite, largest, 0.0), 0.0)
    return (tl.exp(below) * MASS_ONE).to(tl.int64)


@triton.jit
def load_scaled(row, tokens, inside, inverse_temperature):
    """Logits of a row (its pointer) at `tokens`, times the inverse temperature, float32; -inf outside and for NaN."""
    logits = tl.load(row + tokens, mask=inside, other=float("-inf")).to(tl.float32)
    return tl.where(logits == logits, logits, float("-inf")) * inverse_temperature
