"""Products of few rows with plain weights equal the reference, and a row's does not depend on the others."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from kernels import reference
from kernels.reference_ops import ReferenceOps
from kernels.triton import few_rows
from kernels.triton.few_rows import PlainLinear
from kernels.triton.ops import TritonOps
from kernels.triton.tuning_products import FEW_ROWS, LEAST_FEW_ROWS_NUMBERS
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE, DTYPES, assert_product, random
from tests.support.tiny_models import make_checkpoint

SHAPES = [
    pytest.param(1, 1, 128, id="one output"),
    pytest.param(3, 65, 256, id="odd outputs"),
    pytest.param(16, 64, 1280, id="two splits or more"),
    pytest.param(5, 130, 1101, id="odd inputs, in splits"),
    pytest.param(2, 70, 72, id="inputs that fill no tile"),
]
"""Rows, outputs, inputs."""


@pytest.fixture
def all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights take the kernel, too."""
    monkeypatch.setattr(few_rows, "LEAST_FEW_ROWS_NUMBERS", 0)


@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "out_features", "in_features"), SHAPES)
def test_products(rows: int, out_features: int, in_features: int, dtype: torch.dtype) -> None:
    """Numbers in memory past the last row are not read: there are NaN."""
    weight, bias = random(out_features, in_features, dtype=dtype), random(out_features, dtype=dtype, seed=1)
    memory = random(rows * in_features + 512, dtype=dtype, seed=2)
    memory[rows * in_features :] = torch.nan
    x = memory[: rows * in_features].view(rows, in_features)
    for given in (None, bias):
        expected = reference.linear(x.float(), weight.float(), None if given is None else given.float())
        linear = PlainLinear(weight, given)
        assert (linear.out_features, linear.in_features) == (out_features, in_features)
        assert_product(linear(x), expected.to(dtype), dtype)
        assert torch.equal(linear.wide(x), linear(x).float()), "also a second and a third time"


@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_row_alone_equals_the_row_among_others(dtype: torch.dtype) -> None:
    """To the bit; a row that is not finite stays alone."""
    linear = PlainLinear(random(70, 1280, dtype=dtype), None)
    x = random(FEW_ROWS.row_tile, 1280, dtype=dtype)
    x[1] = torch.nan
    among = linear(x)
    assert among.isnan().all(dim=1).tolist() == [row == 1 for row in range(len(x))]
    for row in (0, 7, 15):
        assert torch.equal(among[row], linear(x[row : row + 1].clone())[0])
    assert torch.equal(among[13:], linear(x[13:]))


@pytest.mark.usefixtures("all_sizes")
def test_splits_are_added_in_their_order_whichever_is_done_last() -> None:
    """The interpreter runs the last split last; a workspace of sums that was left by others does not count."""
    weight, x = random(64, 1280, dtype=torch.float32), random(2, 1280, dtype=torch.float32)
    linear = PlainLinear(weight, None)
    assert linear._splits == 5, "each of 256 inputs"
    total = torch.zeros(2, 64, device=DEVICE)
    for part, inputs in zip(weight.split(256, dim=1), x.split(256, dim=1), strict=True):
        alone = PlainLinear(part.contiguous(), None)
        assert alone._splits == 1
        total += alone(inputs)
    assert torch.equal(linear(x), total)
    assert not linear._arrivals.any(), "the next launch counts from 0"


@pytest.mark.parametrize("rows", [0, 17])
def test_other_numbers_of_rows_are_given_to_torch(rows: int, all_sizes: None) -> None:
    weight, x = random(70, 128, dtype=torch.float16), random(rows, 128, dtype=torch.float16)
    linear = PlainLinear(weight, None)
    assert torch.equal(linear(x), functional.linear(x, weight))
    assert torch.equal(linear.wide(x), functional.linear(x, weight).float())


def test_small_weights_are_given_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainLinear, "by_kernel", lambda self, x, dtype: "the kernel")
    small, large = torch.zeros(LEAST_FEW_ROWS_NUMBERS // 64 - 1, 64), torch.zeros(LEAST_FEW_ROWS_NUMBERS // 64, 64)
    x = torch.zeros(1, 64)
    assert isinstance(PlainLinear(small, None)(x), torch.Tensor)
    assert PlainLinear(large, None)(x) == "the kernel"


@pytest.mark.usefixtures("all_sizes")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-1)])
def test_a_models_logits_are_equal(dtype: torch.dtype, tolerance: float, tmp_path: Path) -> None:
    """One with biases, in chunks of more and of fewer rows and in decode steps."""
    folder = make_checkpoint(tmp_path / "qwen2", "qwen2")
    expected = logits_of(loaded(folder, ReferenceOps(DEVICE, dtype)))
    actual = logits_of(loaded(folder, TritonOps(DEVICE, dtype)))
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)
