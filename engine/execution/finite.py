"""Detects rows of a step whose hidden states are not finite."""

import numpy as np

from kernels.arrays import BFLOAT16, Array, Ints

_EXPONENT = np.uint16(0x7F80)
"""The exponent bits of a bf16 number. All are set in an infinity or NaN."""


def finite_rows(hidden: Array, ends: Ints) -> list[bool]:
    """Whether all hidden states [T, H] of each row are finite, in bf16 or float32. `ends`, int64 [R]: index of each
    row's last state; rows are adjacent."""
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
