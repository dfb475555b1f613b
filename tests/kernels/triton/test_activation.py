"""The MLP's gate equals the reference."""

from collections.abc import Callable

import pytest
import torch

from kernels import reference
from kernels.triton import activation
from tests.support.kernel_tensors import DTYPES, assert_close, random


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (6, 40), (3, 1023), (2, 1025), (5, 2048), (1, 5001), (0, 64)])
def test_silu_mul(dtype: torch.dtype, rows: int, width: int) -> None:
    gate_up = random(rows, 2 * width, dtype=dtype) * 4
    actual = activation.silu_mul(gate_up)
    assert actual.shape == (rows, width)
    assert_close(actual, reference.silu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (6, 40), (3, 1025), (0, 64)])
def test_gelu_mul(dtype: torch.dtype, rows: int, width: int) -> None:
    gate_up = random(rows, 2 * width, dtype=dtype) * 4
    actual = activation.gelu_mul(gate_up)
    assert actual.shape == (rows, width)
    assert_close(actual, reference.gelu_mul(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 1025), (0, 64)])
def test_clamped_swiglu_mul(dtype: torch.dtype, rows: int, width: int) -> None:
    """Halves within the limits, and beyond them on both sides."""
    gate_up = random(rows, 2 * width, dtype=dtype) * 6
    actual = activation.clamped_swiglu_mul(gate_up)
    assert actual.shape == (rows, width)
    assert_close(actual, reference.clamped_swiglu_mul(gate_up.float()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["silu_mul", "gelu_mul"])
def test_gates_far_out(name: str, dtype: torch.dtype) -> None:
    """exp overflows on one side and vanishes on the other; neither gives a NaN."""
    gates = torch.tensor([-60_000.0, -200.0, -88.0, -17.0, 0.0, 17.0, 88.0, 200.0])
    gate_up = torch.cat((gates, torch.full((8,), 0.5)))[None].to(random(1, dtype=dtype))
    actual = getattr(activation, name)(gate_up)
    assert actual.isfinite().all()
    assert_close(actual, getattr(reference, name)(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 8), (3, 1025), (0, 64)])
def test_sigmoid_mul(dtype: torch.dtype, rows: int, width: int) -> None:
    x, gate = random(rows, width, dtype=dtype), random(rows, width, dtype=dtype, seed=1) * 100
    assert_close(activation.sigmoid_mul(x, gate), reference.sigmoid_mul(x, gate))


@pytest.mark.parametrize("multiply", [activation.silu_mul, activation.gelu_mul, activation.clamped_swiglu_mul])
def test_broken_numbers_stay_where_they_are(multiply: Callable[[torch.Tensor], torch.Tensor]) -> None:
    gate_up = random(2, 12, dtype=torch.float32)
    gate_up[0, 1], gate_up[1, 6 + 4] = torch.nan, torch.nan
    assert multiply(gate_up).isnan().nonzero().tolist() == [[0, 1], [1, 4]]
