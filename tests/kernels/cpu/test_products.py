"""Products with bf16 weights: right at every level of the processor, and independent of the batch's other rows."""

import ctypes
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels import reference
from kernels.cpu import native
from kernels.cpu.native.abi import Format, Level, Linear, Store, Weight
from kernels.cpu.native.library import load
from tests.kernels.cpu.paged import levels

library = load()
if library is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

bf16 = torch.bfloat16
LEVELS = levels()
ALIGNMENT = 64


GATED = (Store.SILU_MUL, Store.GELU_MUL, Store.CLAMPED_MUL)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    best = library.tp_level()
    native.start(2)
    yield
    library.tp_use_level(best)


@pytest.fixture(params=LEVELS, ids=lambda level: level.name)
def level(request: pytest.FixtureRequest) -> Level:
    """Every one that this processor has."""
    assert library.tp_use_level(request.param) == request.param
    return request.param


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(bf16)


def aligned(size: int) -> Tensor:
    whole = torch.full((size + ALIGNMENT,), 255, dtype=torch.uint8)
    start = -whole.data_ptr() % ALIGNMENT
    return whole[start : start + size]


class Product:
    """Weights [outputs, inputs] bf16 one below the other, each with a bias float32 [outputs] or none."""

    def __init__(self, *parts: tuple[Tensor, Tensor | None]) -> None:
        self.struct, self._kept = Linear(count=len(parts)), []
        self.outputs = sum(len(weight) for weight, _ in parts)
        for index, (weight, bias) in enumerate(parts):
            packed = aligned(library.tp_packed_bytes(Format.BF16, *weight.shape))
            library.tp_pack(Format.BF16, weight.data_ptr(), *weight.shape, packed.data_ptr())
            bias_at = None if bias is None else bias.data_ptr()
            self.struct.part[index] = Weight(Format.BF16, 0, *weight.shape, packed.data_ptr(), bias_at)
            self._kept += [packed, bias]

    def __call__(self, x: Tensor, store: Store = Store.BF16, y: Tensor | None = None) -> Tensor:
        if y is None:
            columns = self.outputs // 2 if store in GATED else self.outputs
            y = torch.zeros((len(x), columns), dtype=bf16 if store in (Store.BF16, *GATED) else torch.float32)
        at = ctypes.byref(self.struct)
        scratch = aligned(library.tp_product_scratch_bytes(at, len(x)))
        library.tp_product(at, x.data_ptr(), x.stride(0), len(x), store, y.data_ptr(), y.stride(0), scratch.data_ptr())
        return y


@dataclass(slots=True)
class Case:
    weight: Tensor
    bias: Tensor | None

    def product(self) -> Product:
        return Product((self.weight, self.bias))

    def exact(self, x: Tensor) -> Tensor:
        product = x.double() @ self.weight.double().T
        return product if self.bias is None else product + self.bias.double()

    def error(self, x: Tensor) -> Tensor:
        """Bound on the rounding error of float32 sums."""
        magnitude = x.double().abs() @ self.weight.double().abs().T
        return 1e-5 * (magnitude if self.bias is None else magnitude + self.bias.double().abs())


def case(outputs: int, inputs: int, seed: int = 0, *, biased: bool = False) -> Case:
    return Case(random(outputs, inputs, seed=seed), random(outputs, seed=seed + 1).float() if biased else None)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 40),
    outputs=st.integers(1, 100),
    pairs=st.integers(1, 100),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape(level: Level, rows: int, outputs: int, pairs: int, biased: bool, seed: int) -> None:
    library.tp_use_level(level)
    some, x = case(outputs, 2 * pairs, seed, biased=biased), random(rows, 2 * pairs, seed=seed + 2)
    expected, error = some.exact(x), some.error(x)
    product = some.product()
    sums = product(x, Store.FLOAT32)
    assert ((sums.double() - expected).abs() <= error).all()
    assert torch.equal(product(x), sums.to(bf16)), "rounded once, to the nearest"
    before = random(rows, outputs, seed=seed + 3).float()
    assert torch.equal(product(x, Store.ADD_FLOAT32, before.clone()), before + sums)


@pytest.mark.parametrize("store", GATED)
@pytest.mark.parametrize("blocks", [1, 3])
def test_gates(level: Level, blocks: int, store: Store) -> None:
    """Of every 32 outputs SiLU, or GELU, of the first 16 times the others, from sums that are not rounded."""
    some, x = case(32 * blocks, 96, biased=True), random(14, 96, seed=3)
    gate, up = (part.flatten(1) for part in some.exact(x).view(14, blocks, 2, 16).unbind(2))
    gate_error, up_error = (part.flatten(1) for part in some.error(x).view(14, blocks, 2, 16).unbind(2))
    multiply = {
        Store.SILU_MUL: reference.silu_mul,
        Store.GELU_MUL: reference.gelu_mul,
        Store.CLAMPED_MUL: reference.clamped_swiglu_mul,
    }[store]
    expected = multiply(torch.cat((gate, up), dim=1))
    # GELU falls to 0 so fast that the rounding of its argument is a larger part of it than of SiLU.
    error = 1.2 * gate_error * (up.abs() + 1) + up_error * gate.abs() + expected.abs() * (1 / 256 + 1e-5)
    actual = some.product()(x, store)
    assert ((actual.double() - expected).abs() <= error).all()


def test_clamped_gates_and_ups(level: Level) -> None:
    """Gates above 7 count as 7, ups beyond 7 as 7 of their sign; what is no number stays so."""
    gates = torch.tensor([-300.0, -90.0, 0.0, 2.0, 7.0, 200.0, math.inf, math.nan] * 2)
    ups = torch.tensor([1.0] * 5 + [300.0, -math.inf, 1.0] + [-300.0] * 8)
    product = Product((torch.zeros(32, 2, dtype=bf16), torch.cat((gates, ups))))
    actual = product(torch.zeros(1, 2, dtype=bf16), Store.CLAMPED_MUL)[0].float()
    wanted = reference.clamped_swiglu_mul(torch.cat((gates, ups))[None])[0]
    torch.testing.assert_close(actual, wanted, rtol=1 / 256, atol=1e-30, equal_nan=True)
    assert actual[5].item() == pytest.approx(56, rel=0.01)


def test_gates_that_are_shut_or_wide_open(level: Level) -> None:
    """A gate of -200 gives 0 and one of 200 itself; infinite ones and what is no number stay what they are."""
    gates = torch.tensor([-200.0, -90.0, 0.0, 200.0, math.inf, math.nan])
    weight = torch.zeros(32, 2, dtype=bf16)
    bias = torch.ones(32)
    bias[: len(gates)] = gates
    actual = Product((weight, bias))(torch.zeros(1, 2, dtype=bf16), Store.SILU_MUL)[0, : len(gates)].float()
    assert actual[:3].abs().tolist() == [0, pytest.approx(90 * math.exp(-90), rel=0.01, abs=1e-37), 0]
    assert actual[3:5].tolist() == [200, math.inf]
    assert actual[5].isnan()


def test_parts_are_one_below_the_other(level: Level) -> None:
    parts = [case(70, 64, 1, biased=True), case(32, 64, 2), case(5, 64, 3, biased=True)]
    x = random(19, 64, seed=9)
    together = Product(*((part.weight, part.bias) for part in parts))
    for store in (Store.BF16, Store.FLOAT32):
        assert torch.equal(together(x, store), torch.cat([part.product()(x, store) for part in parts], 1))
    halves = [case(64, 64, 1), case(32, 64, 2)]
    gated = Product(*((part.weight, part.bias) for part in halves))(x, Store.SILU_MUL)
    assert torch.equal(gated, torch.cat([part.product()(x, Store.SILU_MUL) for part in halves], 1))


@pytest.mark.parametrize(
    "level", sorted({Level.AVX2, Level.AVX512_FLOAT} & set(LEVELS)), ids=lambda level: level.name, indirect=True
)
def test_sums_of_float32_have_one_order(level: Level) -> None:
    """Over 43 pairs, of which ten are a quarter, in numbers that show it: 1 added to 2^24 is lost, and 2 is not."""
    large = 2.0**24
    rows: list[tuple[dict[int, float], float]] = [
        ({0: large, 1: 1, 2: -large}, 0),  # both inputs of a pair, and then the next pair's
        ({1: large, 2: 1, 3: -large}, 0),
        ({0: large, 20: 1, 22: 1, 40: -large}, 2),  # a quarter has a sum of its own
        ({0: large, 18: 1, 19: 1, 20: -large}, 0),  # and ends where it should
        ({60: large, 84: 1, 85: -large}, 0),  # the last takes what is over
        ({0: large, 40: 1, 60: 1}, large + 2),  # (0 + 1) + (2 + 3)
    ]
    x = torch.tensor([[numbers.get(index, 0) for index in range(2 * 43)] for numbers, _ in rows]).to(bf16)
    weight = torch.ones(3, 2 * 43, dtype=bf16)
    product, expected = Product((weight, None)), [total for _, total in rows]
    assert product(x, Store.FLOAT32)[:, 0].tolist() == expected
    assert [product(row, Store.FLOAT32)[0, 0].item() for row in x.split(1)] == expected


@pytest.mark.parametrize(("outputs", "inputs"), [(200, 192), (33, 14), (64, 2048)])
def test_a_row_is_the_same_in_any_company(level: Level, outputs: int, inputs: int) -> None:
    product, x = case(outputs, inputs).product(), random(70, inputs, seed=1)
    alone = torch.cat([product(row[None], Store.FLOAT32) for row in x])
    for rows in range(1, 71):
        assert torch.equal(product(x[:rows], Store.FLOAT32), alone[:rows])


def test_many_rows_are_computed_in_panels(level: Level) -> None:
    """More rows than stay in the cache: the same numbers as for each panel alone."""
    some, x = case(96, 8192), random(150, 8192, seed=1)
    product = some.product()
    together = product(x, Store.FLOAT32)
    assert ((together.double() - some.exact(x)).abs() <= some.error(x)).all()
    assert torch.equal(together, torch.cat([product(part, Store.FLOAT32) for part in x.split(40)]))


def test_what_is_not_a_number_stays_in_its_row(level: Level) -> None:
    product, x = case(64, 64).product(), random(14, 64, seed=1)
    clean = product(x)
    x[3, 7], x[9, 0] = math.nan, math.inf
    spoilt = product(x)
    assert not spoilt[3].isfinite().any()
    assert not spoilt[9].isfinite().any()
    others = [row for row in range(14) if row not in (3, 9)]
    assert torch.equal(spoilt[others], clean[others])


def test_rows_may_lie_apart(level: Level) -> None:
    wide, product = random(9, 300, seed=1), case(40, 128).product()
    x = wide[::2, 10:138]
    assert x.stride() == (600, 1)
    assert torch.equal(product(x), product(x.contiguous()))


@pytest.mark.parametrize(
    ("store", "outputs"),
    [(store, outputs) for store in Store for outputs in (64, 33, 16, 3) if store not in GATED or outputs % 32 == 0],
)
def test_nothing_is_written_beyond_a_row(level: Level, store: Store, outputs: int) -> None:
    product, x = case(outputs, 16).product(), random(15, 16, seed=1)
    columns = outputs // 2 if store in GATED else outputs
    dtype = bf16 if store in (Store.BF16, *GATED) else torch.float32
    around = torch.full((15, columns + 20), 7.0, dtype=dtype)
    inside = around[:, 8 : 8 + columns]
    inside.zero_()
    product(x, store, inside)
    assert torch.equal(inside, product(x, store))
    assert (around[:, :8] == 7).all()
    assert (around[:, 8 + columns :] == 7).all()


def test_what_was_packed_is_found_again() -> None:
    weight = random(45, 30)
    packed = aligned(library.tp_packed_bytes(Format.BF16, 45, 30))
    library.tp_pack(Format.BF16, weight.data_ptr(), 45, 30, packed.data_ptr())
    for output in (0, 31, 32, 44):
        numbers = torch.empty(30)
        library.tp_unpack_row(Format.BF16, packed.data_ptr(), 45, 30, output, numbers.data_ptr())
        assert torch.equal(numbers, weight[output].float())


def test_weights_outlive_a_change_of_level() -> None:
    """How a weight lies does not depend on the level that it was packed at."""
    product, x = case(40, 64).product(), random(3, 64, seed=1)
    sums = []
    for each in LEVELS:
        library.tp_use_level(each)
        sums.append(product(x, Store.FLOAT32))
    for other in sums[1:]:
        torch.testing.assert_close(other, sums[0], rtol=1e-5, atol=1e-4)


def test_odd_widths_and_formats_that_there_are_not_are_refused() -> None:
    assert library.tp_packed_bytes(Format.BF16, 8, 7) == -1
    assert library.tp_packed_bytes(99, 8, 8) == -1


def test_no_rows() -> None:
    product = case(8, 8).product()
    assert product(random(0, 8)).shape == (0, 8)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads: int) -> None:
    product, x = case(3000, 64).product(), random(3, 64, seed=1)
    expected = product(x)
    native.start(threads)
    for _ in range(200):
        assert torch.equal(product(x), expected)


def test_callers_do_not_disturb_one_another() -> None:
    product, x = case(3000, 64).product(), random(3, 64, seed=1)
    expected, wrong = product(x), []

    def call() -> None:
        wrong.extend(1 for _ in range(300) if not torch.equal(product(x), expected))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong
