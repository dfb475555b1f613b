"""Weights of signed bytes for inputs that are rounded to signed bytes: the blocks of `kernels.integers` as the native
library packs them.

A row is of one output: a float32 scale, then the integers plus 128, a byte each.
"""

from dataclasses import replace

import numpy as np

from kernels.arrays import FLOAT32
from kernels.weights import StoredWeight

FORMAT = "w8a8"
_INTEGERS = "u8_"
_MIDDLE = 128


def with_rounded_inputs(part: StoredWeight) -> StoredWeight:
    """The same weight in `FORMAT`, if the checkpoint was made for that, each output has one scale, and its integers are
    signed; else the weight as it is."""
    if not (part.rounded_inputs and part.format.startswith(_INTEGERS)):
        return part
    inputs = int(part.format.removeprefix(_INTEGERS))
    block = np.dtype([("scale", "<f4"), ("zero_point", "u1"), ("codes", "u1", (inputs,))])
    blocks = np.ascontiguousarray(part.rows).view(block)
    scales = blocks["scale"]
    if (scales != scales[:, :1]).any() or (blocks["zero_point"] != _MIDDLE).any():
        return part
    rows = np.empty((part.out_features, FLOAT32.itemsize + part.in_features), np.uint8)
    rows[:, : FLOAT32.itemsize] = np.ascontiguousarray(scales[:, :1]).view(np.uint8)
    rows[:, FLOAT32.itemsize :] = blocks["codes"].reshape(part.out_features, -1)
    return replace(part, format=FORMAT, rows=rows)
