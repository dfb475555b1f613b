"""Weights of signed bytes for inputs rounded to signed bytes: exact sums, the same at every level, as the reference
defines."""

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.arrays import Array, Floats
from kernels.cpu.memory import WeightMemory
from kernels.cpu.native import NativeLinear, abi, pack_gate_up, start
from kernels.cpu.native.abi import Format, Level, Store
from kernels.cpu.native.library import load
from kernels.cpu.native.w8a8 import FORMAT, with_rounded_inputs
from kernels.exchange import array_of, tensor_of
from kernels.integers import GroupedIntegers
from kernels.reference_rounded import RoundedWeight, round_by, round_tokens, rounded_linear
from kernels.weights import StoredWeight
from tests.kernels.cpu.paged import levels

library = load()
if library is None:
    pytest.skip("no native library was built", allow_module_level=True)

bf16 = torch.bfloat16
each_level = pytest.mark.parametrize("level", levels(), ids=lambda level: level.name)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    level = library.tp_level()
    yield
    library.tp_use_level(level)
    start(1)


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weight_of(outputs: int, inputs: int, seed: int = 0) -> RoundedWeight:
    """Any codes, with scales of a usual size that take all bits of a float32, some of them negative."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(-128, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
    return RoundedWeight(codes, (torch.randn(1, outputs, generator=generator) * 0.01))


def stored(weight: RoundedWeight, input_scale: float | None = None, *, rounded: bool = True) -> StoredWeight:
    """As the reader of a checkpoint passes it on: blocks of unsigned integers."""
    codes = array_of(weight.codes).view(np.uint8) ^ np.uint8(128)
    scales = array_of(weight.scales.T.contiguous())
    integers = GroupedIntegers(8, codes, scales, np.full(scales.shape, 128, np.uint8))
    size = next(size for size in (128, 64, 32) if weight.in_features % size == 0)
    blocks = integers.blocks(f"u8_{size}")
    return StoredWeight(blocks.format, blocks.rows, *codes.shape, rounded, input_scale)


def packed(
    *weights: RoundedWeight, bias: Tensor | None = None, input_scales: Sequence[float | None] | None = None
) -> NativeLinear:
    scales = input_scales or [None] * len(weights)
    parts = [stored(weight, scale) for weight, scale in zip(weights, scales, strict=True)]
    return NativeLinear(parts, None if bias is None else array_of(bias), WeightMemory())


def x_of(rows: int, inputs: int, seed: int = 1) -> Tensor:
    """bf16 rows whose numbers differ in size as those of a model do."""
    return (random(rows, inputs, seed=seed) * torch.exp(random(inputs, seed=seed + 1))).to(bf16)


def wide(linear: NativeLinear, x: Tensor) -> Floats:
    return linear.wide(array_of(x))


def exact(weight: RoundedWeight, x: Tensor, input_scale: float | None = None) -> Array:
    """The sum of integers, exactly, as a float32 times the product of both scales."""
    own = input_scale is None
    codes, scales = round_tokens(x, torch.int8, grouped=False) if own else round_by(x, input_scale, torch.int8)
    sums = codes.long() @ weight.codes.long().T
    return array_of(sums.float() * (weight.scales * scales))


@each_level
@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 40),
    outputs=st.integers(1, 100),
    units=st.integers(1, 12),
    input_scale=st.none() | st.floats(2**-10, 1, width=32),
    seed=st.integers(0, 99),
)
def test_sums_are_exact(
    level: Level, rows: int, outputs: int, units: int, input_scale: float | None, seed: int
) -> None:
    library.tp_use_level(level)
    weight, x = weight_of(outputs, 32 * units, seed), x_of(rows, 32 * units, seed)
    sums = wide(packed(weight, input_scales=[input_scale]), x)
    assert np.array_equal(sums, exact(weight, x, input_scale))
    expected = array_of(rounded_linear(x, weight, None, torch.float32, input_scale))
    np.testing.assert_allclose(sums, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@each_level
def test_the_largest_sum_that_there_is(level: Level) -> None:
    library.tp_use_level(level)
    inputs = 1 << 17
    codes = torch.stack([torch.full((inputs,), -128), torch.full((inputs,), 127)]).to(torch.int8)
    weight = RoundedWeight(codes, torch.ones(1, 2))
    x = torch.stack([torch.full((inputs,), 127.0), torch.full((inputs,), -127.0)]).to(bf16)
    assert np.array_equal(wide(packed(weight), x), exact(weight, x))
    assert not library.tp_packed_bytes(Format.W8A8, 1, inputs) < 0
    assert library.tp_packed_bytes(Format.W8A8, 1, inputs + 32) == -1


@each_level
def test_ties_and_extremes_are_rounded_as_the_reference_says(level: Level) -> None:
    library.tp_use_level(level)
    numbers = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5, 3.3e38, -3.3e38, 1e-38, 1e-40, 9.2e-41, 0.0, -0.0, 127.0]
    rows = torch.zeros(6, 32)
    rows[0, :16] = torch.tensor(numbers)
    rows[1, :7], rows[1, 7] = torch.tensor(numbers[:7]), 127  # a step of 1
    rows[2, 3] = 1e-40
    rows[3, :4] = torch.tensor([1e-40, -9.2e-41, 4e-41, 1e-39])
    rows[4, :2] = torch.tensor([3.3e38, -1.0])
    x, weight = rows.to(bf16), weight_of(40, 32)
    assert np.array_equal(wide(packed(weight), x), exact(weight, x))
    for scale in (1.0, 1e-30, 3e38):
        assert np.array_equal(wide(packed(weight, input_scales=[scale]), x), exact(weight, x, scale))


@each_level
def test_a_row_is_the_same_among_any_rows_and_on_any_threads(level: Level) -> None:
    library.tp_use_level(level)
    linear, x = packed(weight_of(200, 512)), x_of(103, 512)
    alone = np.concatenate([wide(linear, row[None]) for row in x])
    start(3)
    for rows in (1, 2, 3, 4, 5, 11, 12, 13, 24, 25, 47, 48, 49, 97, 103):
        assert np.array_equal(wide(linear, x[:rows]), alone[:rows]), rows
        assert np.array_equal(wide(linear, x[-rows:]), alone[-rows:]), rows


def test_levels_agree_to_the_bit() -> None:
    bias = random(70, seed=5)
    linear, x, found = packed(weight_of(70, 288), bias=bias), x_of(9, 288), []
    for level in levels():
        library.tp_use_level(level)
        found.append(wide(linear, x))
    assert all(np.array_equal(each, found[0]) for each in found)


@each_level
def test_stores_and_biases(level: Level) -> None:
    library.tp_use_level(level)
    weight, bias, x = weight_of(96, 256), random(96, seed=2), x_of(14, 256)
    linear = packed(weight, bias=bias)
    sums = wide(linear, x)
    assert np.array_equal(sums, exact(weight, x) + array_of(bias))
    assert torch.equal(tensor_of(linear(array_of(x))), tensor_of(sums).to(bf16))
    gates, ups = tensor_of(sums).view(14, 3, 2, 16).unbind(2)
    gated = (torch.nn.functional.silu(gates.double()) * ups.double()).reshape(14, 48)
    actual = tensor_of(linear.gated(array_of(x), Store.SILU_MUL)).double()
    torch.testing.assert_close(actual, gated, rtol=4e-3, atol=1e-6)
    before = random(14, 96, seed=7)
    y, rows = before.clone(), array_of(x)
    at = ctypes.byref(linear.struct)
    scratch = np.empty(library.tp_product_scratch_bytes(at, 14) + 64, np.uint8)
    aligned = -(-scratch.ctypes.data // 64) * 64
    library.tp_product(at, rows.ctypes.data, 256, 14, Store.ADD_FLOAT32, y.data_ptr(), 96, aligned)
    assert torch.equal(y, before + tensor_of(sums))


@each_level
@pytest.mark.parametrize("input_scale", [None, 0.05])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_spares_its_neighbours(level: Level, value: float, input_scale: float | None) -> None:
    library.tp_use_level(level)
    linear, x = packed(weight_of(40, 96), input_scales=[input_scale]), x_of(6, 96)
    clean = wide(linear, x)
    x[2, 50] = value
    x[4, 32:64] = value
    sums = wide(linear, x)
    assert not np.isfinite(sums[[2, 4]]).any()
    assert np.array_equal(sums[[0, 1, 3, 5]], clean[[0, 1, 3, 5]])


@each_level
def test_parts_round_their_inputs_each_by_its_own_scale(level: Level) -> None:
    library.tp_use_level(level)
    weights, scales, x = [weight_of(50, 128, seed) for seed in range(3)], [0.03, None, 0.03], x_of(5, 128)
    together = wide(packed(*weights, input_scales=scales), x)
    parts = [exact(weight, x, scale) for weight, scale in zip(weights, scales, strict=True)]
    assert np.array_equal(together, np.concatenate(parts, axis=1))


@pytest.mark.parametrize("outputs", [64, 40])
@pytest.mark.parametrize("input_scale", [None, 0.05])
def test_gates_and_ups(outputs: int, input_scale: float | None) -> None:
    gate, up, x = weight_of(outputs, 128, 1), weight_of(outputs, 128, 2), x_of(7, 128)
    linear = pack_gate_up(stored(gate, input_scale), stored(up, input_scale), None, WeightMemory())
    assert {part.format for part in linear.struct.part[: linear.struct.count]} == {Format.W8A8}
    gates, ups = (tensor_of(exact(weight, x, input_scale)).double() for weight in (gate, up))
    actual = tensor_of(linear.gated(array_of(x), Store.SILU_MUL))[:, :outputs].double()
    torch.testing.assert_close(actual, torch.nn.functional.silu(gates) * ups, rtol=4e-3, atol=1e-6)


def test_gates_and_ups_with_two_scales_of_their_inputs_are_not_rounded() -> None:
    gate, up, x = weight_of(64, 128, 1), weight_of(64, 128, 2), x_of(7, 128)
    linear = pack_gate_up(stored(gate, 0.05), stored(up, 0.06), None, WeightMemory())
    assert linear.struct.part[0].format == Format.U8_128
    gates, ups = (x.double() @ weight.floats().double().T for weight in (gate, up))
    actual = tensor_of(linear.gated(array_of(x), Store.SILU_MUL)).double()
    torch.testing.assert_close(actual, torch.nn.functional.silu(gates) * ups, rtol=4e-3, atol=1e-3)


def test_weights_are_unpacked_as_they_are() -> None:
    weight = weight_of(45, 160, seed=3)
    assert np.array_equal(packed(weight).rows(range(45)), array_of(weight.floats()))


def test_other_weights_stay_in_their_format() -> None:
    weight = weight_of(4, 256)
    assert with_rounded_inputs(stored(weight)).format == FORMAT
    assert with_rounded_inputs(stored(weight, rounded=False)).format == "u8_128"
    codes, scales = np.zeros((4, 256), np.uint8), np.ones((4, 2), np.float32)
    for grouped in (
        GroupedIntegers(8, codes, scales * np.array([1, 2], np.float32), np.full((4, 2), 128, np.uint8)),
        GroupedIntegers(8, codes, scales, np.full((4, 2), 127, np.uint8)),
    ):
        blocks = grouped.blocks("u8_128")
        part = StoredWeight(blocks.format, blocks.rows, 4, 256, rounded_inputs=True)
        assert with_rounded_inputs(part) is part


def test_shapes_that_do_not_fit_are_refused() -> None:
    assert library.tp_packed_bytes(Format.W8A8, 1, 32) == 128 + 32 * 32
    for outputs, inputs in ((0, 32), (-1, 32), (1, 0), (1, -32), (1, 31), (1, 48)):
        assert library.tp_packed_bytes(Format.W8A8, outputs, inputs) == -1
    assert abi.Format.W8A8.name.lower() == FORMAT
