"""Products with AMX's tiles, on tiles that are arrays; what real ones compute is asked when a process starts."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernels.cpu.native.abi import Format, Store, Weight
from kernels.cpu.native.library import load

library = load()
COMPILER = shutil.which("g++")
if library is None or COMPILER is None:
    pytest.skip("no native library, or no compiler", allow_module_level=True)

SOURCES = Path(__file__).parents[3] / "kernels/cpu/native/src"


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("amx") / "emulated.so"
    source = Path(__file__).with_name("amx_emulated.cpp")
    options = ("-std=c++17", "-O2", "-fPIC", "-shared", "-Wno-psabi", f"-I{SOURCES}")
    subprocess.run([COMPILER, *options, "-o", built, source], check=True)
    return ctypes.CDLL(str(built))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


class Product:
    def __init__(self, emulated: ctypes.CDLL, weight: Tensor, bias: Tensor | None = None) -> None:
        self._call, self._outputs = emulated.emulated_product, len(weight)
        self._packed, self._bias = (
            torch.empty(library.tp_packed_bytes(Format.BF16, *weight.shape), dtype=torch.uint8),
            bias,
        )
        library.tp_pack(Format.BF16, weight.data_ptr(), *weight.shape, self._packed.data_ptr())
        bias_at = None if bias is None else bias.data_ptr()
        self._weight = Weight(Format.BF16, 0, *weight.shape, self._packed.data_ptr(), bias_at)

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.zeros((len(x), self._outputs))
        at, counts = ctypes.c_void_p, ctypes.c_int64
        self._call(
            ctypes.byref(self._weight),
            at(x.data_ptr()),
            counts(x.stride(0)),
            counts(len(x)),
            Store.FLOAT32,
            at(y.data_ptr()),
            counts(self._outputs),
        )
        return y


def test_tiles_agree_with_loops(emulated: ctypes.CDLL) -> None:
    assert emulated.emulated_agrees() == 1


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 70),
    outputs=st.integers(1, 70),
    pairs=st.integers(1, 50),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_shape(emulated: ctypes.CDLL, rows: int, outputs: int, pairs: int, biased: bool, seed: int) -> None:
    weight, x = random(outputs, 2 * pairs, seed=seed), random(rows, 2 * pairs + 6, seed=seed + 1)[:, 3:-3]
    bias = random(outputs, seed=seed + 2).float() if biased else torch.zeros(outputs)
    expected = x.double() @ weight.double().T + bias.double()
    magnitude = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    actual = Product(emulated, weight, bias if biased else None)(x)
    assert ((actual.double() - expected).abs() <= 1e-5 * magnitude).all()


def test_a_row_is_the_same_in_any_company(emulated: ctypes.CDLL) -> None:
    product, x = Product(emulated, random(33, 90)), random(70, 90, seed=1)
    alone = torch.cat([product(row[None]) for row in x])
    for rows in range(1, 71):
        assert torch.equal(product(x[:rows]), alone[:rows])
