"""Norms equal the reference: any width up to what a program holds, rows of any number."""

import pytest
import torch

from kernels import reference
from kernels.ops import CheckedRows
from kernels.reference_ops import ReferenceOps
from kernels.triton import norms
from tests.support.kernel_tensors import DEVICE, DTYPES, assert_close, random

SHAPES = [(1, 64), (7, 96), (3, 1), (5, 3, 80), (2, 2048), (1, 5000), (2, 16_384)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = random(*shape, dtype=dtype), random(shape[-1], dtype=dtype, seed=1)
    assert_close(norms.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add_rms_norm(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, residual = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    weight = random(shape[-1], dtype=dtype, seed=2)
    expected, expected_total = reference.add_rms_norm(x, residual.clone(), weight, 1e-5)
    normed, total = norms.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, expected_total), "the next residual is the sum, rounded once"
    assert_close(normed, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scalar", [1.0, 0.625])
@pytest.mark.parametrize("with_next", [True, False])
@pytest.mark.parametrize("with_norm", [True, False])
def test_add_branch(dtype: torch.dtype, scalar: float, with_next: bool, with_norm: bool) -> None:
    branch, residual = random(5, 3, 80, dtype=dtype), random(5, 3, 80, dtype=dtype, seed=1)
    own, following = (
        random(80, dtype=dtype, seed=seed) if given else None for seed, given in ((2, with_norm), (3, with_next))
    )
    meaning = ReferenceOps(DEVICE, dtype).add_branch
    expected, expected_total = meaning(branch, own, residual.clone(), following, 1e-5, scalar)
    normed, total = norms.add_branch(branch, own, residual, following, 1e-5, scalar)
    assert total is residual
    assert_close(total, expected_total)
    assert_close(normed, expected)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("number", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("width", [16, 80])
@pytest.mark.parametrize("with_norm", [True, False])
def test_rows_that_are_checked_are_finite_if_all_their_numbers_are(number: float, width: int, with_norm: bool) -> None:
    branch = torch.zeros(6, width, device=DEVICE)
    residual = torch.ones(6, width, device=DEVICE)
    weight = torch.full((width,), 2.0, device=DEVICE)
    branch[2, width - 1] = branch[4, 0] = number
    own = weight if with_norm else None
    plain, _ = norms.add_branch(branch, own, residual.clone(), weight, 1e-5)
    expected = CheckedRows.empty(6, width, torch.float32, DEVICE)
    ReferenceOps(DEVICE, torch.float32).add_branch(branch, own, residual.clone(), weight, 1e-5, into=expected)
    into = CheckedRows.empty(8, width, torch.float32, DEVICE).first(6)
    normed, _ = norms.add_branch(branch, own, residual, weight, 1e-5, into=into)
    assert normed is into.rows
    torch.testing.assert_close(normed, plain, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(into.finite, expected.finite)
    assert into.finite.tolist() == [1, 1, 0, 1, 0, 1]


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_a_weight_that_overflows_the_dtype_breaks_a_row() -> None:
    x = torch.tensor([[1.0, 2.0], [0.0, 0.0]], dtype=torch.float16, device=DEVICE)
    weight = torch.full((2,), 60_000.0, dtype=torch.float16, device=DEVICE)
    into = CheckedRows.empty(2, 2, torch.float16, DEVICE)
    norms.add_branch(torch.zeros_like(x), None, x, weight, 1e-5, into=into)
    assert into.finite.tolist() == [0, 1]


def test_the_sum_is_rounded_before_it_is_normed() -> None:
    """1 + 2^-11 is 1 in float16, and normed alone gives the weight; the sum that was not rounded would not."""
    residual = torch.ones(1, 16, dtype=torch.float16, device=DEVICE)
    x = torch.zeros_like(residual)
    x[0, :8] = 2.0**-11
    weight = torch.full_like(residual[0], 2048.0)
    normed, total = norms.add_rms_norm(x, residual, weight, 0.0)
    assert torch.equal(total, torch.ones_like(total))
    assert torch.equal(normed, weight[None])


def test_the_normed_value_is_rounded_before_the_weight() -> None:
    x = torch.tensor([[1.0, 1.0009765625]], dtype=torch.float16, device=DEVICE)
    weight = torch.full_like(x[0], 3.0)
    assert torch.equal(norms.rms_norm(x, weight, 0.0), reference.rms_norm(x, weight, 0.0))


@pytest.mark.parametrize("dtype", DTYPES)
def test_small_and_large_rows(dtype: torch.dtype) -> None:
    """Squares are summed in float32: rows whose squares a 16-bit dtype cannot hold are normed all the same."""
    x = random(3, 64, dtype=dtype)
    x[0] *= 1e-4
    x[1] *= 300.0
    x[2] = 0.0
    weight = random(64, dtype=dtype, seed=1)
    actual = norms.rms_norm(x, weight, 1e-6)
    assert_close(actual, reference.rms_norm(x, weight, 1e-6))
    assert actual.isfinite().all()
    assert not actual[2].any()


def test_a_row_that_is_broken_does_not_touch_its_neighbours() -> None:
    x = random(3, 40, dtype=torch.float32)
    x[1, 7] = torch.nan
    normed = norms.rms_norm(x, torch.ones(40).to(x), 1e-5)
    assert normed[1].isnan().all()
    assert normed[[0, 2]].isfinite().all()


def test_no_rows() -> None:
    assert norms.rms_norm(random(0, 64, dtype=torch.float32), random(64, dtype=torch.float32), 1e-5).shape == (0, 64)


def test_what_no_program_can_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="16385 elements: one program holds 16384"):
        norms.rms_norm(random(1, 16_385, dtype=torch.float32), random(16_385, dtype=torch.float32), 1e-5)


def test_rows_with_gaps_are_refused() -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        norms.rms_norm(random(4, 64, dtype=torch.float32)[:, :32], random(32, dtype=torch.float32), 1e-5)
