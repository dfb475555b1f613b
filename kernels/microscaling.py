"""Weights in MXFP4 (OCP Microscaling Formats 1.0): e2m1 numbers of four bits, of which 32 share a power of two.

W = number 2^(exponent - 127). Folders store two numbers next to each other in a byte, GGUF files 0 and 16, 1 and
17, and so on, of a block. Stacks of experts have leading axes: pass one expert's arrays.
"""

import numpy as np

from kernels.arrays import FLOAT32, Bytes, Floats
from kernels.integers import unpacked
from kernels.weights import StoredWeight

FORMAT = "mxfp4"
BLOCK_INPUTS = 32
NOT_A_NUMBER = 255
"""The exponent that stands for no number."""
_HALF = BLOCK_INPUTS // 2
VALUES: Floats = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], FLOAT32)
"""By code."""


def floats(pairs: Bytes, exponents: Bytes) -> Floats:
    """float32 [out, in] of pairs uint8 [out, in / 2], the first number in the lower half, and exponents uint8
    [out, in / 32]."""
    numbers: Floats = VALUES[unpacked(pairs, 4)]
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 127).astype(FLOAT32)
    by_block: Floats = numbers.reshape(*exponents.shape, BLOCK_INPUTS)
    by_block *= scales[..., None]
    return numbers


def blocks(pairs: Bytes, exponents: Bytes) -> StoredWeight:
    """The same weight in GGUF's blocks: an exponent, and 16 bytes of numbers i (lower half) and i + 16."""
    out_features, count = exponents.shape
    numbers = unpacked(pairs, 4).reshape(out_features, count, 2, _HALF)
    rows: Bytes = np.empty((out_features, count, 1 + _HALF), np.uint8)
    rows[..., 0] = exponents
    rows[..., 1:] = numbers[..., 0, :] | numbers[..., 1, :] << 4
    return StoredWeight(FORMAT, rows.reshape(out_features, -1), out_features, count * BLOCK_INPUTS)
