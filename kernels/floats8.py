"""Weights in 8-bit floats (e4m3) with scales that multiply: W = scale w. Their `blocks` are what backends pack without
rounding."""

import ml_dtypes
import numpy as np

from kernels.arrays import FLOAT32, Bytes, Floats
from kernels.weights import StoredWeight

_BLOCK_INPUTS = (128, 32)
NOT_A_NUMBER = 0x7F
"""The code, without its sign, that stands for no number."""
VALUES: Floats = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(FLOAT32)
"""The number of each code."""


def block_format(scale_inputs: int) -> str | None:
    """The format, as in `StoredWeight`, for weights whose rows have a scale for every `scale_inputs` inputs: its
    blocks have the most inputs that divide them. None if there is none."""
    return next((f"e4m3_{inputs}" for inputs in _BLOCK_INPUTS if scale_inputs % inputs == 0), None)


def blocks(format: str, codes: Bytes, scales: Floats) -> StoredWeight:
    """Codes uint8 [out, in] and scales float32 [out, blocks] in that format: of each block a scale, then codes."""
    inputs = int(format.rpartition("_")[2])
    out_features, in_features = codes.shape
    rows = np.empty((out_features, in_features // inputs), [("scale", "<f4"), ("codes", "u1", (inputs,))])
    rows["scale"] = scales
    rows["codes"] = codes.reshape(*rows.shape, inputs)
    return StoredWeight(format, rows.view(np.uint8).reshape(out_features, -1), out_features, in_features)
