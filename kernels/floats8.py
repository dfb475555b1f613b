"""Weights of 8-bit floats (e4m3) in blocks of 128 inputs of an output: a float32 scale, then the numbers."""

import numpy as np

from kernels.arrays import Bytes, Floats
from kernels.weights import StoredWeight

FORMAT = "e4m3_128"
BLOCK_INPUTS = 128


def blocks(codes: Bytes, scales: Floats) -> StoredWeight:
    """Codes uint8 [out_features, in_features] and scales [out_features, in_features / 128], which multiply."""
    out_features, in_features = codes.shape
    rows = np.empty(scales.shape, [("scale", "<f4"), ("codes", "u1", (BLOCK_INPUTS,))])
    rows["scale"] = scales
    rows["codes"] = codes.reshape(*scales.shape, BLOCK_INPUTS)
    return StoredWeight(FORMAT, rows.view(np.uint8).reshape(out_features, -1), out_features, in_features)
