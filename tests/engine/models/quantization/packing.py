"""Packers of the formats, written from their published layouts and apart from the readers under test."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from kernels.arrays import Array, Floats

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Integers:
    """codes, an integer [out, in] in 0..2^bits - 1; scales [out, groups]; zeros, an integer [out, groups]. groups_of:
    the group of each input."""

    bits: int
    codes: Array
    scales: Array
    zeros: Array
    group_of: Array

    def floats(self) -> Floats:
        """s (q - z), number by number."""
        wide = self.codes.astype(np.float64) - self.zeros[:, self.group_of]
        return (wide * self.scales.astype(np.float64)[:, self.group_of]).astype(np.float32)


def rounded(
    weight: Floats,
    bits: int,
    group_size: int,
    *,
    symmetric: bool,
    scale_type: Any = np.float16,
    permute: int | None = None,
) -> Integers:
    """The weight rounded to the nearest integers. permute: seed of an activation order; None: groups in order."""
    out_features, in_features = weight.shape
    size = in_features if group_size == -1 else group_size
    group_of = np.arange(in_features) // size
    if permute is not None:
        group_of = np.random.default_rng(permute).permutation(group_of)
    middle, most = 1 << (bits - 1), (1 << bits) - 1
    scales = np.empty((out_features, in_features // size), scale_type)
    zeros = np.full(scales.shape, middle)
    codes = np.empty(weight.shape, np.int64)
    for group in range(scales.shape[1]):
        part = weight[:, group_of == group]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        step = np.maximum(np.abs(part).max(1) / (middle - 1) if symmetric else (high - low) / most, 1e-4)
        scales[:, group] = step.astype(scale_type)
        own = scales[:, group].astype(np.float64)
        if not symmetric:
            zeros[:, group] = np.clip(np.round(-low / own), 0, most)
        integers = np.round(part / own[:, None]) + zeros[:, group, None]
        codes[:, group_of == group] = np.clip(integers, 0, most)
    return Integers(bits, codes, scales, zeros, group_of)


def words(numbers: Array, bits: int) -> Array:
    """Integers [..., n] packed into int32 [..., ceil(n bits / 32)], the lowest bits first; filled up with zeros."""
    per_word = 32 // bits
    count = -(-numbers.shape[-1] // per_word)
    packed = np.zeros((*numbers.shape[:-1], count), np.uint64)
    for place in range(numbers.shape[-1]):
        packed[..., place // per_word] |= numbers[..., place].astype(np.uint64) << np.uint64(place % per_word * bits)
    return packed.astype(np.uint32).view(np.int32)


def gptq(weight: Integers, *, version: str = "gptq", stored_zeros: Array | None = None) -> dict[str, Array]:
    zeros = weight.zeros if stored_zeros is None else stored_zeros
    packed = words(zeros.T, weight.bits)
    if version == "gptq" and stored_zeros is None:
        # As GPTQModel does: one less in every place of a word, with the borrows that this makes.
        ones = sum(1 << shift for shift in range(0, 32, weight.bits))
        packed = (packed.view(np.uint32) - np.uint32(ones)).view(np.int32)
    return {
        "qweight": np.ascontiguousarray(words(weight.codes, weight.bits).T),
        "qzeros": packed,
        "scales": np.ascontiguousarray(weight.scales.T),
        "g_idx": weight.group_of.astype(np.int32),
    }


def awq(weight: Integers) -> dict[str, Array]:
    def packed(numbers: Array) -> Array:
        by_word = numbers.reshape(len(numbers), -1, 8)[:, :, AWQ_ORDER]
        return words(by_word.reshape(len(numbers), -1), 4)

    return {
        "qweight": packed(weight.codes.T),
        "qzeros": packed(weight.zeros.T),
        "scales": np.ascontiguousarray(weight.scales.T),
    }


def pack_quantized(weight: Integers, *, symmetric: bool, index: bool = False) -> dict[str, Array]:
    tensors = {
        "weight_packed": words(weight.codes, weight.bits),
        "weight_scale": weight.scales,
        "weight_shape": np.array(weight.codes.shape, np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = np.ascontiguousarray(words(weight.zeros.T, weight.bits).T)
    if index:
        tensors["weight_g_idx"] = weight.group_of.astype(np.int32)
    return tensors


def int_quantized(weight: Integers, *, symmetric: bool) -> dict[str, Array]:
    tensors = {"weight": (weight.codes - 128).astype(np.int8), "weight_scale": weight.scales}
    if not symmetric:
        tensors["weight_zero_point"] = (weight.zeros - 128).astype(np.int8)
    return tensors


def float8(weight: Floats, block: tuple[int, int] | None) -> tuple[Array, Floats, Floats]:
    """e4m3 numbers; scales float32, one for each block or row; and the floats that they stand for."""
    rows, columns = block or (1, weight.shape[1])
    scales = np.empty((-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)), np.float32)
    codes = np.empty(weight.shape, ml_dtypes.float8_e4m3fn)
    floats = np.empty(weight.shape, np.float32)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            part = np.s_[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
            scale = scales[row, column] = np.abs(weight[part]).max() / np.float32(448)
            codes[part] = (weight[part] / scale).astype(ml_dtypes.float8_e4m3fn)
            floats[part] = codes[part].astype(np.float32) * scale
    return codes, scales, floats


E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def mxfp4(weight: Floats) -> tuple[dict[str, Array], Floats]:
    """Numbers of four bits with a power of two for 32 of them, the nearest that there are."""
    blocks = weight.reshape(len(weight), -1, 32).astype(np.float64)
    exponents = np.floor(np.log2(np.maximum(np.abs(blocks).max(2), 1e-30))) - 2
    parts = blocks / 2.0 ** exponents[..., None]
    sizes = np.abs(np.abs(parts)[..., None] - np.array(E2M1)).argmin(-1)
    codes = (sizes + 8 * (parts < 0)).reshape(len(weight), -1).astype(np.uint8)
    floats = np.array(E2M1)[sizes] * np.where(parts < 0, -1, 1) * 2.0 ** exponents[..., None]
    tensors = {
        "weight_packed": codes[:, 0::2] | codes[:, 1::2] << 4,
        "weight_scale": (exponents + 127).astype(np.uint8),
    }
    return tensors, floats.reshape(weight.shape).astype(np.float32)


NF4 = np.array(
    (
        *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
        *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
        *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
    ),
    np.float32,
)
"""The quantiles of a normal distribution that bitsandbytes has."""


def nf4(weight: Floats, *, nested: bool) -> tuple[dict[str, Array], Floats]:
    """Over the flattened weight, in blocks of 64; nested: scales less their mean in 8 bits, in blocks of 256."""
    blocks = weight.reshape(-1, 64)
    scales = np.abs(blocks).max(1).astype(np.float32)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(weight.shape)}
    tensors: dict[str, Array] = {"weight.quant_map": NF4}
    if nested:
        offset = float(scales.mean())
        table = np.linspace(-1, 1, 256).astype(np.float32)
        rest = scales - np.float32(offset)
        sizes = np.array([np.abs(rest[at : at + 256]).max() for at in range(0, len(rest), 256)], np.float32)
        by_scale = np.repeat(sizes, 256)[: len(rest)]
        codes = np.abs(rest[:, None] / by_scale[:, None] - table).argmin(1).astype(np.uint8)
        scales = table[codes] * by_scale + np.float32(offset)
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        tensors |= {"weight.absmax": codes, "weight.nested_absmax": sizes, "weight.nested_quant_map": table}
    else:
        tensors["weight.absmax"] = scales
    chosen = np.abs(blocks[..., None] / scales[:, None, None] - NF4).argmin(-1)
    flat = chosen.reshape(-1).astype(np.uint8)
    tensors["weight"] = (flat[0::2] << 4 | flat[1::2])[:, None]
    tensors["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return tensors, (NF4[chosen] * scales[:, None]).reshape(weight.shape)


LayerTensors = Mapping[str, Array]
