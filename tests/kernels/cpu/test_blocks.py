"""Weights of GGUF blocks, of signed bytes, of four bits and of 8-bit floats: their numbers and their products, at every
level."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import floats8
from kernels.arrays import Floats
from kernels.cpu.native.abi import Format, Level, Linear, Store, Weight
from kernels.cpu.native.library import load, start
from kernels.integers import GroupedIntegers

library = load()
if library is None:
    pytest.skip("no native library was built", allow_module_level=True)


def highest_level() -> int:
    usual = library.tp_level()
    highest = library.tp_use_level(Level.AMX)
    library.tp_use_level(usual)
    return highest


MOST = highest_level()
LEVELS = [level for level in (Level.PORTABLE, Level.AVX2, Level.AVX512_BF16, Level.AVX512_FLOAT) if level <= MOST]
GGUF = {
    format: GGMLQuantizationType[format.name]
    for format in (
        *(Format.Q4_0, Format.Q4_1, Format.Q5_0, Format.Q5_1, Format.Q8_0, Format.IQ4_NL, Format.MXFP4),
        *(Format.Q2_K, Format.Q3_K, Format.Q4_K, Format.Q5_K, Format.Q6_K, Format.IQ4_XS),
    )
}
RANDOM_BLOCKS = {
    Format.Q2_K: (80, 82),
    Format.Q3_K: (108,),
    Format.Q4_K: (0, 2),
    Format.Q5_K: (0, 2),
    Format.Q6_K: (208,),
    Format.IQ4_NL: (0,),
    Format.IQ4_XS: (0,),
}
"""Types that the gguf package reads and does not write: where a block has scales in float16."""
E4M3 = (Format.E4M3_32, Format.E4M3_128)
ROUNDED = (Format.INT8, Format.INT4)
ZERO_POINTS = (Format.U4_32, Format.U4_64, Format.U4_128, Format.U8_32, Format.U8_64, Format.U8_128)
FORMATS = (*GGUF, *ROUNDED, *ZERO_POINTS, *E4M3)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    level = library.tp_level()
    yield
    library.tp_use_level(level)
    start(1)


def group_inputs(weight_format: Format) -> int:
    if weight_format in (*ZERO_POINTS, *E4M3):
        return int(weight_format.name.rpartition("_")[2])
    return GGML_QUANT_SIZES[GGUF[weight_format]][0] if weight_format in GGUF else 32


def aligned(size: int) -> tuple[int, np.ndarray]:
    """The address of `size` bytes, a multiple of 64, and the array that holds them, filled with 255."""
    memory = np.full(size + 64, 255, np.uint8)
    return -(-memory.ctypes.data // 64) * 64, memory


@dataclass(slots=True)
class Packed:
    """A packed weight and the numbers [outputs, inputs] float32 that it should stand for."""

    format: Format
    numbers: np.ndarray
    at: int
    memory: np.ndarray

    @property
    def weight(self) -> Weight:
        outputs, inputs = self.numbers.shape
        return Weight(format=self.format, outputs=outputs, inputs=inputs, packed=self.at)


def pack(weight_format: Format, rows: np.ndarray, shape: tuple[int, int]) -> tuple[int, np.ndarray]:
    size = library.tp_packed_bytes(weight_format, *shape)
    assert size > 0
    at, memory = aligned(size)
    library.tp_pack(weight_format, rows.ctypes.data, *shape, at)
    return at, memory


def unpacked(weight_format: Format, at: int, shape: tuple[int, int]) -> np.ndarray:
    numbers = np.empty(shape, np.float32)
    for output in range(shape[0]):
        library.tp_unpack_row(weight_format, at, *shape, output, numbers[output].ctypes.data)
    return numbers


def random_blocks(weight_format: Format, shape: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """Blocks of any bits, with scales of a usual size."""
    weights, size = GGML_QUANT_SIZES[GGUF[weight_format]]
    blocks = random.integers(0, 256, (shape[0], shape[1] // weights, size), np.uint8)
    for at in RANDOM_BLOCKS[weight_format]:
        scales = random.standard_normal((*blocks.shape[:2], 1)) * 0.01
        blocks[..., at : at + 2] = scales.astype(np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def floats8_of(weight_format: Format, shape: tuple[int, int], random: np.random.Generator) -> tuple[np.ndarray, Floats]:
    """Rows of blocks and their numbers: codes but those of no number, and scales that take all bits of a float32."""
    inputs = group_inputs(weight_format)
    codes = random.integers(0, 256, shape, np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0
    scales = random.standard_normal((shape[0], shape[1] // inputs), np.float32) * np.float32(0.01)
    numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * np.repeat(scales, inputs, axis=1)
    return floats8.blocks(weight_format.name.lower(), codes, scales).rows, numbers


def integers(weight_format: Format, shape: tuple[int, int], random: np.random.Generator) -> GroupedIntegers:
    """Any codes and zero points, with scales of a usual size that take all bits of a float32."""
    bits, groups = int(weight_format.name[1]), (shape[0], shape[1] // group_inputs(weight_format))
    codes = random.integers(0, 256, (shape[0], shape[1] * bits // 8), np.uint8)
    scales = random.standard_normal(groups, np.float32) * np.float32(0.01)
    return GroupedIntegers(bits, codes, scales, random.integers(0, 1 << bits, groups, np.uint8))


def packed_weight(weight_format: Format, shape: tuple[int, int], seed: int = 0) -> Packed:
    random = np.random.default_rng(seed)
    if weight_format in ZERO_POINTS:
        weight = integers(weight_format, shape, random)
        at, memory = pack(weight_format, weight.blocks(weight_format.name.lower()).rows, shape)
        return Packed(weight_format, weight.floats(), at, memory)
    if weight_format in E4M3:
        rows, numbers = floats8_of(weight_format, shape, random)
        at, memory = pack(weight_format, rows, shape)
        return Packed(weight_format, numbers, at, memory)
    weights = (random.standard_normal(shape) * 0.05).astype(np.float32)
    if weight_format in ROUNDED:
        bits = torch.from_numpy(weights).bfloat16().view(torch.int16).numpy()
        at, memory = pack(weight_format, bits, shape)
        return Packed(weight_format, unpacked(weight_format, at, shape), at, memory)
    kind = GGUF[weight_format]
    known = weight_format in RANDOM_BLOCKS
    rows = random_blocks(weight_format, shape, random) if known else quants.quantize(weights, kind)
    at, memory = pack(weight_format, np.ascontiguousarray(rows), shape)
    return Packed(weight_format, quants.dequantize(rows, kind).reshape(shape).astype(np.float32), at, memory)


def inputs_of(rows: int, inputs: int, seed: int = 1) -> Tensor:
    """bf16 rows whose numbers differ in size as those of a model do: some channels are far larger."""
    generator = torch.Generator().manual_seed(seed)
    channels = torch.exp(torch.randn(inputs, generator=generator))
    return (torch.randn(rows, inputs, generator=generator) * channels).bfloat16()


Y_TYPES = {Store.BF16: torch.bfloat16, Store.SILU_MUL: torch.bfloat16}


def product(
    parts: list[Packed],
    x: Tensor,
    store: Store = Store.FLOAT32,
    biases: list[Tensor] | None = None,
    y: Tensor | None = None,
) -> Tensor:
    """y as `tp_product` leaves it."""
    linear = Linear(count=len(parts))
    for index, part in enumerate(parts):
        linear.part[index] = part.weight
        if biases is not None:
            linear.part[index].bias = biases[index].data_ptr()
    outputs = sum(part.numbers.shape[0] for part in parts)
    if y is None:
        width = outputs // 2 if store is Store.SILU_MUL else outputs
        y = torch.full((x.shape[0], width), -7.0, dtype=Y_TYPES.get(store, torch.float32))
    size = library.tp_product_scratch_bytes(ctypes.byref(linear), x.shape[0])
    at, memory = aligned(size)
    library.tp_product(
        ctypes.byref(linear), x.data_ptr(), x.stride(0), x.shape[0], store, y.data_ptr(), y.stride(0), at
    )
    del memory
    return y


def expected(parts: list[Packed], x: Tensor, biases: list[Tensor] | None = None) -> np.ndarray:
    wide = x.double().numpy()
    sums = [wide @ part.numbers.astype(np.float64).T for part in parts]
    if biases is not None:
        sums = [part + bias.double().numpy() for part, bias in zip(sums, biases, strict=True)]
    return np.concatenate(sums, axis=1)


def allowed(parts: list[Packed], x: Tensor) -> np.ndarray:
    """Errors of the sums that numbers may make by half a step of their group, and rounding of float32 sums."""
    wide = x.double().abs().numpy()
    groups = wide.reshape(len(wide), -1, 32)
    largest = np.maximum(groups.max(2), 2.0**-111)
    half_steps = np.repeat(2.0 ** (np.floor(np.log2(largest)) - 15), 32, axis=1)
    # Products of the zero points are added apart: they may be larger than the weights.
    reach = [np.abs(part.numbers).max() if part.format in ZERO_POINTS else 0.0 for part in parts]
    weights = [np.abs(part.numbers.astype(np.float64)).T + most for part, most in zip(parts, reach, strict=True)]
    return np.concatenate([half_steps @ of_part + 1e-5 * (wide @ of_part) for of_part in weights], axis=1)


@pytest.mark.parametrize("weight_format", [*GGUF, *ZERO_POINTS, *E4M3])
def test_a_row_is_unpacked_as_it_stands_in_the_file(weight_format: Format) -> None:
    packed = packed_weight(weight_format, (45, 768), seed=3)
    assert np.array_equal(unpacked(weight_format, packed.at, packed.numbers.shape), packed.numbers)


@pytest.mark.parametrize("weight_format", FORMATS)
def test_shapes_that_do_not_fit_are_refused(weight_format: Format) -> None:
    group = group_inputs(weight_format)
    assert library.tp_packed_bytes(weight_format, 8, group) > 0
    for inputs in (0, -group, group - 1, group + 16, 2 * group + 1):
        assert library.tp_packed_bytes(weight_format, 8, inputs) == -1
    assert library.tp_packed_bytes(weight_format, 0, group) == -1


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("weight_format", FORMATS)
@settings(max_examples=12, deadline=None)
@given(outputs=st.integers(1, 100), groups=st.integers(1, 20), rows=st.integers(1, 60), seed=st.integers(0, 99))
def test_products_are_those_of_the_unpacked_weights(
    level: Level, weight_format: Format, outputs: int, groups: int, rows: int, seed: int
) -> None:
    library.tp_use_level(level)
    group = group_inputs(weight_format)
    packed = packed_weight(weight_format, (outputs, group * max(1, groups * 32 // group)), seed)
    x = inputs_of(rows, packed.numbers.shape[1], seed)
    error = np.abs(product([packed], x).numpy() - expected([packed], x))
    assert (error <= allowed([packed], x)).all()


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_a_rows_numbers_do_not_depend_on_the_rows_beside_it(level: Level, weight_format: Format) -> None:
    library.tp_use_level(level)
    packed = packed_weight(weight_format, (70, 512))
    x = inputs_of(103, 512)
    alone = torch.cat([product([packed], x[row : row + 1]) for row in range(len(x))])
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 31, 47, 48, 49, 64, 97, 103):
        assert torch.equal(product([packed], x[:rows]), alone[:rows]), rows
        assert torch.equal(product([packed], x[-rows:]), alone[-rows:]), rows


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_threads_change_nothing(level: Level, weight_format: Format) -> None:
    library.tp_use_level(level)
    packed = packed_weight(weight_format, (200, 512))
    x = inputs_of(9, 512)
    by_one = product([packed], x)
    start(3)
    assert torch.equal(product([packed], x), by_one)
    again = packed_weight(weight_format, (200, 512))
    size = library.tp_packed_bytes(weight_format, 200, 512)
    assert ctypes.string_at(again.at, size) == ctypes.string_at(packed.at, size)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("weight_format", FORMATS)
def test_every_way_to_store(level: Level, weight_format: Format) -> None:
    library.tp_use_level(level)
    packed = packed_weight(weight_format, (96, 256))
    x = inputs_of(7, 256)
    sums = product([packed], x)
    assert torch.equal(product([packed], x, Store.BF16), sums.bfloat16())
    before = torch.randn(7, 96, generator=torch.Generator().manual_seed(5))
    assert torch.equal(product([packed], x, Store.ADD_FLOAT32, y=before.clone()), before + sums)
    gates, ups = sums.view(7, 3, 2, 16).unbind(2)
    gated = (torch.nn.functional.silu(gates.double()) * ups.double()).reshape(7, 48)
    torch.testing.assert_close(product([packed], x, Store.SILU_MUL).double(), gated, rtol=4e-3, atol=1e-6)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_parts_of_several_formats_with_biases(level: Level) -> None:
    library.tp_use_level(level)
    parts = [
        packed_weight(Format.Q4_K, (50, 512)),
        packed_weight(Format.INT8, (16, 512)),
        packed_weight(Format.Q6_K, (33, 512)),
    ]
    biases = [torch.randn(part.numbers.shape[0]) for part in parts]
    x = inputs_of(5, 1024)[:, :512]
    assert not x.is_contiguous()
    error = np.abs(product(parts, x, biases=biases).numpy() - expected(parts, x, biases))
    assert (error <= allowed(parts, x) + 1e-6).all()


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_levels_agree_but_for_rounding(level: Level) -> None:
    packed = packed_weight(Format.Q4_1, (64, 576))
    x = inputs_of(6, 576)
    best = product([packed], x)
    library.tp_use_level(level)
    assert ((product([packed], x) - best).abs().numpy() <= allowed([packed], x)).all()


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_spares_its_neighbours(level: Level, value: float) -> None:
    library.tp_use_level(level)
    packed = packed_weight(Format.Q8_0, (40, 96))
    x = inputs_of(6, 96)
    clean = product([packed], x)
    x[2, 50] = value
    x[4, 32:64] = value
    sums = product([packed], x)
    assert not sums[[2, 4]].isfinite().any()
    others = [0, 1, 3, 5]
    assert torch.equal(sums[others], clean[others])


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-30, 1e-12, 1.0, 1e12, 3e38])
def test_rows_of_any_size(level: Level, size: float) -> None:
    library.tp_use_level(level)
    if level is Level.AVX512_BF16:
        size = min(size, 1e34)  # the sum is divided by a scale of some 0.01
    packed = packed_weight(Format.Q4_1, (32, 64))
    x = (inputs_of(3, 64) / 64 * size).bfloat16()
    error = np.abs(product([packed], x).numpy() - expected([packed], x))
    assert (error <= allowed([packed], x)).all()


@pytest.mark.parametrize(("weight_format", "most"), [(Format.INT8, 0.006), (Format.INT4, 0.076)])
def test_rounding_errs_as_little_as_its_bits_allow(weight_format: Format, most: float) -> None:
    """Of normally distributed weights; Q4_0 of ggml, of the same size as INT4, errs by 0.086."""
    shape = (64, 576)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(7)).mul(0.02).bfloat16()
    at, memory = pack(weight_format, weights.view(torch.int16).numpy(), shape)
    error = torch.from_numpy(unpacked(weight_format, at, shape)).double() - weights.double()
    assert (error.norm() / weights.double().norm()).item() < most
    del memory


@pytest.mark.parametrize("weight_format", ROUNDED)
def test_weights_are_rounded_alike_at_every_level(weight_format: Format) -> None:
    shape = (41, 160)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(8)) * torch.logspace(-9, 0, 160)
    weights[3] = weights[3].abs()
    weights[4, :70] = 0
    bits = weights.bfloat16().view(torch.int16).numpy()
    size = library.tp_packed_bytes(weight_format, *shape)
    by_level = []
    for level in LEVELS:
        library.tp_use_level(level)
        at, memory = pack(weight_format, bits, shape)
        by_level.append(ctypes.string_at(at, size))
        del memory
    assert by_level == [by_level[0]] * len(LEVELS)


@pytest.mark.parametrize("weight_format", ROUNDED)
def test_rounding_keeps_zeros_and_extreme_rows(weight_format: Format) -> None:
    weights = torch.zeros(5, 64)
    weights[1] = 0.25
    weights[2] = -3e38
    weights[3] = 1e-30
    weights[4, :32] = torch.linspace(0, 1, 32)
    weights = weights.bfloat16()
    at, memory = pack(weight_format, weights.view(torch.int16).numpy(), (5, 64))
    numbers = torch.from_numpy(unpacked(weight_format, at, (5, 64)))
    assert torch.equal(numbers[0], weights[0].float())
    assert torch.equal(numbers[4, 32:], weights[4, 32:].float())
    step = weights.float().abs().amax(1, keepdim=True) / (120 if weight_format is Format.INT8 else 14)
    assert ((numbers - weights.float()).abs() <= step).all()
    del memory
