"""The native product: right at every level of the processor, and the same for a row whatever rows are beside it."""

import math
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu import native
from kernels.cpu.native import Level, NativeLinear
from kernels.cpu.native.library import load

if load() is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

bf16 = torch.bfloat16


@pytest.fixture(autouse=True)
def two_threads() -> None:
    native.start(2)


@pytest.fixture(params=list(Level), ids=lambda level: level.name)
def level(request: pytest.FixtureRequest) -> Iterator[Level]:
    """Every one that this processor has."""
    library = load()
    assert library is not None
    best = Level(library.tp_level())
    if library.tp_use_level(request.param) != request.param:
        pytest.skip(f"this processor has no {request.param.name}")
    yield request.param
    library.tp_use_level(best)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(bf16)


def exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    product = x.double() @ weight.double().T
    return product if bias is None else product + bias.double()


def assert_close(actual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """Half a unit in the last place of bf16, and what sums of float32 round off on the way."""
    expected = exact(x, weight, bias)
    magnitude = exact(x.abs(), weight.abs(), None if bias is None else bias.abs())
    assert actual.dtype == bf16
    assert ((actual.double() - expected).abs() <= expected.abs() / 256 + magnitude * 1e-5).all()


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(1, 40),
    outputs=st.integers(1, 100),
    pairs=st.integers(1, 70),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("each", list(Level), ids=lambda level: level.name)
def test_any_shape(each: Level, rows: int, outputs: int, pairs: int, biased: bool, seed: int) -> None:
    library = load()
    assert library is not None
    best = native.level()
    try:
        if library.tp_use_level(each) != each:
            return
        weight, x = random(outputs, 2 * pairs, seed=seed), random(rows, 2 * pairs, seed=seed + 1)
        bias = random(outputs, seed=seed + 2) if biased else None
        assert_close(NativeLinear(weight, bias)(x), x, weight, bias)
    finally:
        library.tp_use_level(best)


def test_a_row_is_the_same_in_any_company(level: Level) -> None:
    product, x = NativeLinear(random(200, 192), None), random(70, 192, seed=1)
    together = product(x)
    for rows in (1, 2, 5, 12, 13, 33):
        assert torch.equal(product(x[:rows]), together[:rows])


def test_what_is_not_a_number_stays_in_its_row(level: Level) -> None:
    product, x = NativeLinear(random(64, 64), None), random(14, 64, seed=1)
    clean = product(x)
    x[3, 7], x[9, 0] = math.nan, math.inf
    spoilt = product(x)
    assert not spoilt[3].isfinite().any()
    assert not spoilt[9].isfinite().any()
    others = [row for row in range(14) if row not in (3, 9)]
    assert torch.equal(spoilt[others], clean[others])


def test_rows_may_lie_apart(level: Level) -> None:
    wide = random(9, 300, seed=1)
    x, weight = wide[::2, 10:138], random(40, 128)
    assert x.stride() == (600, 1)
    assert_close(NativeLinear(weight, None)(x), x, weight)
    turned = random(128, 6, seed=2).T
    assert_close(NativeLinear(weight, None)(turned), turned, weight)


def test_nothing_is_written_beyond_a_row(level: Level) -> None:
    """The library writes where it is told to: rows of 33 outputs in the midst of others."""
    library = load()
    assert library is not None
    product, x = NativeLinear(random(33, 16), None), random(5, 16, seed=1)
    around = torch.full((5, 50), 7.0, dtype=bf16)
    pointers = (product._packed.data_ptr(), 33, 16, x.data_ptr(), 16, 5, None, around.data_ptr() + 2 * 8, 50)
    library.tp_bf16_linear(*pointers)
    assert torch.equal(around[:, 8:41], product(x))
    assert (around[:, :8] == 7).all()
    assert (around[:, 41:] == 7).all()


def test_no_rows() -> None:
    assert NativeLinear(random(8, 8), None)(random(0, 8)).shape == (0, 8)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads(threads: int) -> None:
    product, x = NativeLinear(random(3000, 64), None), random(3, 64, seed=1)
    expected = product(x)
    native.start(threads)
    for _ in range(200):
        assert torch.equal(product(x), expected)


def test_callers_do_not_disturb_one_another() -> None:
    product, x = NativeLinear(random(3000, 64), None), random(3, 64, seed=1)
    expected, wrong = product(x), []

    def call() -> None:
        wrong.extend(1 for _ in range(300) if not torch.equal(product(x), expected))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_only_what_it_can_do_is_taken() -> None:
    assert native.can_pack(random(8, 8))
    assert not native.can_pack(random(8, 7))
    assert not native.can_pack(random(8, 8).float())
