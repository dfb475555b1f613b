"""Products in e4m3 and int8, and the rounding of their activations, equal the reference."""

import pytest
import torch

from kernels import reference_rounded as reference
from kernels.reference_rounded import GROUP_INPUTS, RoundedWeight
from kernels.triton.rounded import RoundedLinear
from kernels.triton.rounding import round_tokens
from tests.kernels.triton.interpreter import round_to_fp8_as_a_gpu
from tests.support.kernel_tensors import DEVICE, DTYPES, TOLERANCE, random

KINDS = [(torch.float8_e4m3fn, False), (torch.float8_e4m3fn, True), (torch.int8, False), (torch.int8, True)]


@pytest.fixture(autouse=True)
def gpu_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        round_to_fp8_as_a_gpu(monkeypatch)


def weight_of(dtype: torch.dtype, grouped: bool, out_features: int, in_features: int) -> RoundedWeight:
    codes, scales = reference.round_tokens(
        random(out_features, in_features, dtype=torch.float32, seed=3), dtype, grouped=grouped
    )
    if grouped and scales.shape[1] == 1:
        return RoundedWeight(codes, scales.T.contiguous())
    scales = scales * (random(*scales.shape, dtype=torch.float32, seed=4).abs() + 0.1)
    return RoundedWeight(codes, scales.T.contiguous())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("codes", "grouped"), KINDS)
@pytest.mark.parametrize(("rows", "width"), [(1, 128), (5, 384), (2, 2048), (3, 2176), (0, 256), (17, 256)])
def test_tokens_are_rounded(rows: int, width: int, codes: torch.dtype, grouped: bool, dtype: torch.dtype) -> None:
    x = random(rows, width, dtype=dtype) * 7
    if rows > 1:
        x[1] = 0
        x[0, 5] = 3e4
    actual, scales = round_tokens(x, codes, grouped=grouped)
    expected, expected_scales = reference.round_tokens(x, codes, grouped=grouped)
    torch.testing.assert_close(scales, expected_scales, rtol=1e-6, atol=0)
    # A quotient may be rounded otherwise where it lies between two codes: by one of them.
    assert ((actual.float() - expected.float()).abs() <= 0.13 * expected.float().abs().clamp_min(8)).all()
    assert (actual.float() != expected.float()).float().mean() < 0.01 or not rows


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(("codes", "grouped"), KINDS)
def test_a_number_that_is_not_finite_makes_its_scale_nan(codes: torch.dtype, grouped: bool, broken: float) -> None:
    x = random(3, 256, dtype=torch.float32)
    x[1, 130] = broken
    scales = round_tokens(x, codes, grouped=grouped)[1]
    assert scales.isnan().nonzero().tolist() == [[1, 1 if grouped else 0]]


@pytest.mark.parametrize(
    ("rows", "out_features", "in_features"), [(1, 1, 128), (3, 65, 256), (16, 64, 1280), (40, 66, 640)]
)
@pytest.mark.parametrize(("codes", "grouped"), KINDS)
def test_products(codes: torch.dtype, grouped: bool, rows: int, out_features: int, in_features: int) -> None:
    weight = weight_of(codes, grouped, out_features, in_features)
    bias = random(out_features, dtype=torch.float16, seed=1)
    linear = RoundedLinear(weight, bias)
    x = random(rows, in_features, dtype=torch.float16, seed=2)
    expected = reference.rounded_linear(x, weight, bias, torch.float32)
    for actual in (linear.wide(x), linear(x)):
        error = (actual.double() - expected.double()).norm(dim=1) / expected.double().norm(dim=1)
        assert float(error.max()) < TOLERANCE[torch.float16]
    assert linear(x).dtype == torch.float16


@pytest.mark.parametrize(("codes", "grouped"), KINDS[:3])
def test_exact_products_are_exact(codes: torch.dtype, grouped: bool) -> None:
    """Integers up to 15 with a largest of 112 or 127 in each group: every code and every sum is exact."""
    largest = 112.0 if codes == torch.float8_e4m3fn else 127.0
    whole = torch.randint(-15, 16, (5, 512), generator=torch.Generator().manual_seed(1)).float().to(DEVICE)
    whole[:, ::GROUP_INPUTS] = largest
    integers = torch.randint(-15, 16, (70, 512), generator=torch.Generator().manual_seed(2)).float()
    weight = RoundedWeight(integers.to(DEVICE, codes), torch.ones(4 if grouped else 1, 70, device=DEVICE))
    product = RoundedLinear(weight, None).wide(whole)
    torch.testing.assert_close(product, whole @ integers.to(DEVICE).T, rtol=2e-7, atol=1e-3)


@pytest.mark.parametrize("rows", [2, 33, 130])
@pytest.mark.parametrize(("codes", "grouped"), KINDS[1:3])
def test_a_row_alone_equals_the_row_among_others(rows: int, codes: torch.dtype, grouped: bool) -> None:
    weight = weight_of(codes, grouped, 66, 1152)
    x = random(rows, 1152, dtype=torch.float16)
    x[0] = torch.inf
    linear = RoundedLinear(weight, None)
    among = linear(x)
    assert among.isnan().all(dim=1).tolist() == [row == 0 for row in range(rows)]
    assert torch.equal(among[-1], linear(x[-1:].clone())[0])


def test_blocks_of_a_checkpoint() -> None:
    """A scale and 128 numbers at a time; scales that are the same for an output's inputs become one."""
    codes, scales = reference.round_tokens(random(6, 384, dtype=torch.float32), torch.float8_e4m3fn, grouped=True)
    by_block = torch.cat((scales[..., None].view(torch.uint8), codes.view(torch.uint8).view(6, 3, 128)), dim=-1)
    weight = reference.weight_of_blocks(by_block.flatten(1))
    assert torch.equal(weight.floats(), (codes.float().view(6, 3, 128) * scales[..., None]).flatten(1))
    by_block[..., :4] = by_block[:, :1, :4]
    assert reference.weight_of_blocks(by_block.flatten(1)).scales.shape == (1, 6)
