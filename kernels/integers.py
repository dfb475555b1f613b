"""Weights of unsigned integers with a scale and a zero point for each group of inputs: W = scale (q - zero point).

GPTQ, AWQ and compressed-tensors store such weights, each in its own layout. `GroupedIntegers` is their common value:
its `floats` are the definition, and its `blocks` are what backends pack without rounding.
"""

from dataclasses import dataclass

import numpy as np

from kernels.arrays import FLOAT32, Array, Bytes, Floats
from kernels.weights import StoredWeight

BITS = (4, 8)
_BLOCK_INPUTS = (128, 64, 32)


@dataclass(frozen=True, slots=True)
class GroupedIntegers:
    """A weight [out_features, in_features].

    codes: uint8 [out_features, in_features bits / 8], the integers in order; of 4 bits two in a byte, the first in the
        lower half.
    scales: float32 [out_features, groups]. zero_points: uint8 [out_features, groups].
    Groups divide the inputs into equal parts, in order.
    """

    bits: int
    codes: Bytes
    scales: Floats
    zero_points: Bytes

    @property
    def in_features(self) -> int:
        columns: int = self.codes.shape[1]
        return columns * 8 // self.bits

    def floats(self) -> Floats:
        """float32 [out_features, in_features]."""
        codes = unpacked(self.codes, self.bits).astype(FLOAT32)
        by_group: Floats = codes.reshape(*self.scales.shape, -1)
        by_group -= self.zero_points[..., None]
        by_group *= self.scales[..., None]
        return codes

    def floats_of(self, groups: Array) -> Floats:
        """The same with the group of each input, an integer [in_features]."""
        codes: Floats = unpacked(self.codes, self.bits).astype(FLOAT32)
        codes -= self.zero_points[:, groups]
        codes *= self.scales[:, groups]
        return codes

    def blocks(self, format: str) -> StoredWeight:
        """The same weight in the `block_format` of its groups. A block is a float32 scale, a zero point of one byte and
        the integers."""
        inputs = int(format.rpartition("_")[2])
        out_features, blocks = len(self.codes), self.in_features // inputs
        rows = np.empty(
            (out_features, blocks),
            [("scale", "<f4"), ("zero_point", "u1"), ("codes", "u1", (inputs * self.bits // 8,))],
        )
        repeats = blocks // self.scales.shape[1]
        rows["scale"] = np.repeat(self.scales, repeats, axis=1)
        rows["zero_point"] = np.repeat(self.zero_points, repeats, axis=1)
        rows["codes"] = self.codes.reshape(out_features, blocks, -1)
        return StoredWeight(format, rows.view(np.uint8).reshape(out_features, -1), out_features, self.in_features)


def block_format(bits: int, group_inputs: int) -> str | None:
    """The format, as in `StoredWeight`, that holds such weights exactly: its blocks have the most inputs that divide a
    group. None if there is none."""
    if bits not in BITS:
        return None
    return next((f"u{bits}_{inputs}" for inputs in _BLOCK_INPUTS if group_inputs % inputs == 0), None)


def unpacked(codes: Bytes, bits: int) -> Bytes:
    """The integers of packed codes [..., n bits / 8], uint8 [..., n]."""
    if bits == 8:
        return codes
    numbers: Bytes = np.empty((*codes.shape[:-1], codes.shape[-1] * 2), np.uint8)
    np.bitwise_and(codes, 15, out=numbers[..., 0::2])
    np.right_shift(codes, 4, out=numbers[..., 1::2])
    return numbers


def in_order(words: Array) -> Bytes:
    """Packed codes uint8 [..., 4 n] of words int32 [..., n] that hold them lowest bits first."""
    little: Array = np.ascontiguousarray(words, "<i4")
    codes: Bytes = little.view(np.uint8)
    return codes
