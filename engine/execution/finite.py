"""Which rows of a step came out as numbers."""

import numpy as np

from kernels.arrays import BFLOAT16, Array, Ints

_EXPONENT = np.uint16(0x7F80)
"""A bf16 number's exponent bits, all of which are set where it is not finite."""


def finite_rows(hidden: Array, ends: Ints) -> list[bool]:
    """Whether all hidden states [T, H] of each row are finite, in bf16 or float32; the last of row i is at `ends[i]`,
    int64 [R], and those of the next come right behind it."""
    if hidden.dtype == BFLOAT16:
        exponents = hidden.view(np.uint16) & _EXPONENT
        if exponents.max() < _EXPONENT:
            return [True] * len(ends)
        finite = exponents < _EXPONENT
    else:
        finite = np.isfinite(hidden)
    firsts = np.append(0, ends[:-1] + 1)
    rows: list[bool] = np.logical_and.reduceat(finite.all(axis=1), firsts).tolist()
    return rows
