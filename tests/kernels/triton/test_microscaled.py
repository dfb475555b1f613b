"""Products with weights in MXFP4 equal the reference."""

import numpy as np
import pytest
import torch

from kernels import microscaling
from kernels.microscaling import BLOCK_INPUTS, FORMAT
from kernels.reference_grouped import PackedGroups, grouped_linear, packed_groups
from kernels.triton.grouped import GroupedLinear
from kernels.triton.mixture import StackedLinear
from tests.support.kernel_tensors import DEVICE, DTYPES, assert_product, random


def pairs_and_exponents(out_features: int, in_features: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """All codes, and exponents around that of 1."""
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, 256, (out_features, in_features // 2), np.uint8)
    return pairs, rng.integers(121, 128, (out_features, in_features // BLOCK_INPUTS), np.uint8)


def weight_of(out_features: int, in_features: int, seed: int = 0) -> PackedGroups:
    rows = microscaling.blocks(*pairs_and_exponents(out_features, in_features, seed)).rows
    return packed_groups(FORMAT, torch.from_numpy(rows).to(DEVICE))


@pytest.mark.parametrize("in_features", [32, 128, 192])
def test_the_layout_holds_the_weight_exactly(in_features: int) -> None:
    weight, stored = weight_of(37, in_features), pairs_and_exponents(37, in_features)
    assert weight.zero_points is None
    assert np.array_equal(weight.floats().cpu().numpy(), microscaling.floats(*stored))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"), [(1, 1, 128), (3, 65, 96), (16, 64, 1024), (33, 70, 416)]
)
def test_products(rows: int, out_features: int, in_features: int, dtype: torch.dtype) -> None:
    """Few rows and many, tiles that inputs do not fill, and splits; a row alone equals the row among others."""
    weight, x = weight_of(out_features, in_features), random(rows, in_features, dtype=dtype)
    bias = random(out_features, dtype=dtype, seed=1)
    linear = GroupedLinear(weight, bias)
    actual = linear(x)
    assert_product(actual, grouped_linear(x, weight, bias, dtype), dtype)
    assert torch.equal(linear(x[-1:].clone())[0], actual[-1])


def test_exponents_of_the_whole_range() -> None:
    """Each power of two exactly, but for those below the least normal number, which are 0."""
    exponents = np.array([[0], [1], [2], [3], [100], [200], [254]], np.uint8)
    pairs = np.full((7, BLOCK_INPUTS // 2), 0x12, np.uint8)  # 1 and 0.5
    rows = microscaling.blocks(pairs, exponents).rows
    weight = packed_groups(FORMAT, torch.from_numpy(rows).to(DEVICE))
    x = torch.zeros(2, BLOCK_INPUTS, device=DEVICE)
    x[0, 0], x[1, 1] = 1, 1
    powers = np.where(exponents > 1, np.ldexp(np.float32(1), exponents.astype(np.int32) - 127), 0).T
    expected = np.concatenate((powers, powers / 2)).astype(np.float32)
    assert np.array_equal(weight.floats()[:, :2].T.cpu().numpy(), expected)
    assert np.array_equal(GroupedLinear(weight, None)(x).cpu().numpy(), expected)


def test_experts_stay_in_their_format() -> None:
    linears = [GroupedLinear(weight_of(40, 96, seed), random(40, dtype=torch.float16, seed=seed)) for seed in range(3)]
    stacked = StackedLinear(linears, torch.float16)
    assert isinstance(stacked.weight, PackedGroups)
    x = random(2, 96, dtype=torch.float16)
    for expert, linear in enumerate(linears):
        assert torch.equal(stacked.linear(expert)(x), linear(x))
