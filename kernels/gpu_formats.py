"""Which weight formats the kernels for GPUs compute with. Imports no torch."""

from kernels.microscaling import BLOCK_INPUTS
from kernels.microscaling import FORMAT as MXFP4

E4M3_BLOCKS = "e4m3_128"
"""8-bit floats with a scale for 128 inputs of an output: see `kernels.floats8`."""
_E4M3_INPUTS = 128
_GROUPS = (128, 64, 32)
_ROUNDED_BITS = {"int8": 8, "int4": 4}
_ROUNDED_GROUPS = {"int8": _GROUPS, "int4": (32,)}
"""Groups in which numbers are rounded; in 4 bits as small as a CPU's, as larger ones have a larger error."""


def takes(format: str, in_features: int, *, floats8: bool = True) -> bool:
    """Whether a kernel computes with weights of that format, as in `kernels.weights.StoredWeight`, and width.
    `floats8`: whether the GPU computes in e4m3."""
    if format in (E4M3_BLOCKS, "fp8"):
        return floats8 and in_features % _E4M3_INPUTS == 0
    if format == MXFP4:
        return in_features % BLOCK_INPUTS == 0
    if format in _ROUNDED_GROUPS:
        return rounded_group(format, in_features) is not None
    return integers_of(format) is not None and in_features % 32 == 0


def integers_of(format: str) -> tuple[int, int] | None:
    """Bits and inputs of a group of a format of integers in groups; None for another format."""
    kind, _, inputs = format.partition("_")
    bits = {"u4": 4, "u8": 8}.get(kind)
    if bits is None or not inputs.isdecimal() or int(inputs) not in _GROUPS:
        return None
    return bits, int(inputs)


def rounded_bits(format: str) -> int | None:
    """Bits of the integers that numbers of a format are to be rounded to; None if they are not."""
    return _ROUNDED_BITS.get(format)


def rounded_group(format: str, in_features: int) -> int | None:
    """Inputs of a group in which weights of that width are rounded to integers: the most that divide it."""
    return next((group for group in _ROUNDED_GROUPS.get(format, ()) if in_features % group == 0), None)
