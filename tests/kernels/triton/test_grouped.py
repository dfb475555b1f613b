"""Products with weights of integers in groups equal the reference."""

import numpy as np
import pytest
import torch

from kernels import reference_grouped
from kernels.integers import GroupedIntegers
from kernels.reference_grouped import PackedGroups, packed_groups, round_to_groups
from kernels.triton.grouped import GroupedLinear
from kernels.triton.tuning_products import split_tiles
from tests.support.kernel_tensors import DEVICE, DTYPES, assert_product, random

FORMATS = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)]
SHAPES = [(1, 1, 128), (3, 65, 256), (16, 64, 1024), (33, 200, 384), (129, 72, 640), (300, 67, 512)]
"""Rows, outputs, inputs."""


def integers_of(bits: int, group: int, out_features: int, in_features: int, seed: int = 0) -> GroupedIntegers:
    """All integers, the least and largest among them, and zero points over all of their range."""
    rng = np.random.default_rng(seed)
    groups = in_features // group
    return GroupedIntegers(
        bits,
        rng.integers(0, 256, (out_features, in_features * bits // 8), np.uint8),
        (rng.standard_normal((out_features, groups)) / (1 << bits)).astype(np.float32),
        rng.integers(0, 1 << bits, (out_features, groups), np.uint8),
    )


def weight_of(bits: int, group: int, out_features: int, in_features: int, seed: int = 0) -> PackedGroups:
    integers = integers_of(bits, group, out_features, in_features, seed)
    format = f"u{bits}_{group}"
    return packed_groups(format, torch.from_numpy(integers.blocks(format).rows).to(DEVICE))


@pytest.mark.parametrize(("bits", "group"), FORMATS)
@pytest.mark.parametrize("in_features", [128, 384, 96 * 2])
def test_the_layout_holds_the_weight_exactly(bits: int, group: int, in_features: int) -> None:
    if in_features % group:
        in_features = 3 * group
    integers = integers_of(bits, group, 37, in_features)
    packed = weight_of(bits, group, 37, in_features)
    assert np.array_equal(packed.floats().cpu().numpy(), integers.floats())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "out_features", "in_features"), SHAPES)
@pytest.mark.parametrize(("bits", "group"), FORMATS)
def test_products(bits: int, group: int, rows: int, out_features: int, in_features: int, dtype: torch.dtype) -> None:
    if rows > 33 and (group != 128 or dtype != torch.float16):
        pytest.skip("many rows are slow to interpret: one format of each width")
    weight, x = weight_of(bits, group, out_features, in_features), random(rows, in_features, dtype=dtype)
    bias = random(out_features, dtype=dtype, seed=1)
    linear = GroupedLinear(weight, bias)
    assert (linear.out_features, linear.in_features) == (out_features, in_features)
    assert_product(linear(x), reference_grouped.grouped_linear(x, weight, bias, dtype), dtype)
    assert_product(linear.wide(x), reference_grouped.grouped_linear(x, weight, bias, torch.float32), torch.float32)


@pytest.mark.parametrize(("bits", "in_features"), [(4, 96), (8, 32), (4, 160)])
def test_inputs_that_do_not_fill_a_tile(bits: int, in_features: int) -> None:
    """Numbers in memory past the last row are not read: there are NaN."""
    memory = random(5 * in_features + 512, dtype=torch.float32)
    memory[5 * in_features :] = torch.nan
    x = memory[: 5 * in_features].view(5, in_features)
    weight = weight_of(bits, 32, 70, in_features)
    expected = reference_grouped.grouped_linear(x, weight, None, torch.float32)
    assert_product(GroupedLinear(weight, None)(x), expected, torch.float32)


@pytest.mark.parametrize("rows", [2, 32, 40, 130])
def test_a_row_alone_equals_the_row_among_others(rows: int) -> None:
    """To the bit, with splits in programs of their own and in one; a row that is not finite stays alone."""
    weight = weight_of(4, 128, 70, 1280)
    assert split_tiles(10, 70) < 10, "there are splits"
    x = random(rows, 1280, dtype=torch.float16)
    x[1] = torch.nan
    linear = GroupedLinear(weight, None)
    among, last = linear(x), rows - 1
    assert among.isnan().all(dim=1).tolist() == [row == 1 for row in range(rows)]
    for row in {0, last} - {1}:
        assert torch.equal(among[row], linear(x[row : row + 1].clone())[0])


def test_no_rows() -> None:
    assert GroupedLinear(weight_of(4, 128, 70, 128), None)(random(0, 128, dtype=torch.float16)).shape == (0, 70)


@pytest.mark.parametrize(("tiles", "out_features"), [(1, 8), (32, 4096), (112, 4096), (32, 28_672), (7, 64)])
def test_splits_cover_all_tiles(tiles: int, out_features: int) -> None:
    each = split_tiles(tiles, out_features)
    assert 1 <= each <= tiles
    assert (-(-tiles // each) - 1) * each < tiles


@pytest.mark.parametrize(("bits", "step"), [(4, 1 / 15), (8, 1 / 255)])
def test_rounding_is_within_half_a_step(bits: int, step: float) -> None:
    weight = random(9, 256, dtype=torch.float32)
    weight[0] = 0
    weight[1] = weight[1].abs() + 3
    by_group = weight.view(9, -1, 64)
    spread = by_group.amax(-1).clamp_min(0) - by_group.amin(-1).clamp_max(0)
    error = (round_to_groups(weight, bits, 64).floats() - weight).abs().view(9, -1, 64).amax(-1)
    assert (error <= spread * step * 1.01).all()
    assert not error[0].any()
