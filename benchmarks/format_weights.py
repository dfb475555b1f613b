"""Random weights in each format that the native library computes with."""

from dataclasses import replace

import numpy as np

from kernels import floats8, microscaling
from kernels.arrays import BFLOAT16, FLOAT32
from kernels.cpu.native import w8a8
from kernels.integers import GroupedIntegers
from kernels.weights import DENSE, StoredWeight

_HALF = np.float16(0.01).view(np.uint16)
_BLOCKS = {  # weights and bytes of a block, and where it has scales in float16
    "q4_0": (32, 18, (0,)),
    "q4_1": (32, 20, (0, 2)),
    "q5_0": (32, 22, (0,)),
    "q5_1": (32, 24, (0, 2)),
    "q8_0": (32, 34, (0,)),
    "iq4_nl": (32, 18, (0,)),
    "mxfp4": (32, 17, ()),
    "q2_k": (256, 84, (80, 82)),
    "q3_k": (256, 110, (108,)),
    "q4_k": (256, 144, (0, 2)),
    "q5_k": (256, 176, (0, 2)),
    "q6_k": (256, 210, (208,)),
    "iq4_xs": (256, 136, (0,)),
}
_INTEGERS = ("u4_32", "u4_64", "u4_128", "u8_32", "u8_64", "u8_128")
_ROUNDED = ("int8", "int4")
_FLOATS = ("e4m3_32", "e4m3_128")
FORMATS = (w8a8.FORMAT, *_ROUNDED, *_INTEGERS, *_FLOATS, *_BLOCKS)


def random_weight(name: str, outputs: int, inputs: int, seed: int) -> StoredWeight:
    """A weight of that format, or dense bf16, with numbers of a usual size."""
    random = np.random.default_rng(seed)
    if name == DENSE or name in _ROUNDED:
        rows = (random.standard_normal((outputs, inputs), FLOAT32) / 32).astype(BFLOAT16)
        return StoredWeight(name, rows, outputs, inputs)
    if name == w8a8.FORMAT:
        weight = random_weight("u8_128", outputs, inputs, seed)
        scales = weight.rows.reshape(outputs, inputs // 128, -1)[..., :4]
        scales[:] = scales[:, :1]
        return w8a8.with_rounded_inputs(replace(weight, rounded_inputs=True))
    if name in _INTEGERS:
        bits, group = int(name[1]), int(name.rpartition("_")[2])
        codes = random.integers(0, 256, (outputs, inputs * bits // 8), np.uint8)
        scales = random.random((outputs, inputs // group), FLOAT32) * np.float32(0.01)
        zero_points = np.full(scales.shape, 1 << bits - 1, np.uint8)
        return GroupedIntegers(bits, codes, scales, zero_points).blocks(name)
    if name in _FLOATS:
        codes = random.integers(0, 256, (outputs, inputs), np.uint8)
        codes[(codes & floats8.NOT_A_NUMBER) == floats8.NOT_A_NUMBER] = 0
        scales = random.random((outputs, inputs // int(name.rpartition("_")[2])), FLOAT32) * np.float32(0.01)
        return floats8.blocks(name, codes, scales)
    weights, size, scales_at = _BLOCKS[name]
    blocks = random.integers(0, 256, (outputs, inputs // weights, size), np.uint8)
    if name == microscaling.FORMAT:
        blocks[..., 0] = 120
    for at in scales_at:
        blocks[..., at : at + 2] = np.array([_HALF]).view(np.uint8)
    return StoredWeight(name, blocks.reshape(outputs, -1), outputs, inputs)
