"""A mixture of experts equals the reference, in every format of its weights."""

from dataclasses import replace

import pytest
import torch

from kernels import reference
from kernels.ops import ExpertWeights, Linear, MlpWeights
from kernels.reference_grouped import round_to_groups
from kernels.reference_ops import ReferenceLinear, ReferenceOps
from kernels.reference_rounded import round_tokens, round_weight, rounded_linear
from kernels.triton import activation, mixture
from kernels.triton.grouped import GroupedLinear
from kernels.triton.mixture import StackedExperts
from kernels.triton.rounded import RoundedLinear
from kernels.triton.tuning_products import FEW_TOKENS, MANY_TOKENS, expert_launch
from kernels.weights import ExpertWeights as Experts
from kernels.weights import MlpWeights as Mlp
from kernels.weights import RoutingRule
from tests.kernels.triton.interpreter import round_to_fp8_as_a_gpu
from tests.support.kernel_tensors import DEVICE, DTYPES, random

FORMATS = ["dense", "int4", "int8", "e4m3", "e4m3-groups"]


@pytest.fixture(autouse=True)
def gpu_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        round_to_fp8_as_a_gpu(monkeypatch)


def linear(rows: torch.Tensor, format: str, bias: torch.Tensor | None = None) -> Linear:
    if format == "dense":
        return ReferenceLinear(rows, bias)
    if format.startswith("int"):
        return GroupedLinear(round_to_groups(rows, int(format[3:]), 32), bias)
    weight = round_weight(rows, torch.float8_e4m3fn)
    if format == "e4m3-groups":
        codes, scales = round_tokens(rows, torch.float8_e4m3fn, grouped=True)
        weight = replace(weight, codes=codes, scales=scales.T.contiguous())
    return RoundedLinear(weight, bias)


def experts_of(
    count: int,
    per_token: int,
    hidden: int,
    inner: int,
    dtype: torch.dtype,
    format: str = "dense",
    *,
    biased: bool = False,
) -> ExpertWeights:
    """With the experts' weights apart. `biased`: the router and they have biases."""

    def bias(size: int, seed: int) -> torch.Tensor | None:
        return random(size, dtype=dtype, seed=seed) if biased else None

    def expert(seed: int) -> MlpWeights:
        gate_up = random(2 * inner, hidden, dtype=dtype, seed=seed) / hidden**0.5
        down = random(hidden, inner, dtype=dtype, seed=seed + 1) / inner**0.5
        return Mlp(linear(gate_up, format, bias(2 * inner, seed + 2)), linear(down, format, bias(hidden, seed + 3)))

    router = ReferenceLinear(random(count, hidden, dtype=dtype, seed=9), bias(count, 8))
    return Experts(router, [expert(10 * each) for each in range(count)], per_token, renormalise=True)


def counts_of(weights: ExpertWeights) -> torch.Tensor:
    return torch.zeros(len(weights.experts), dtype=torch.int64, device=DEVICE)


def reference_of(
    weights: ExpertWeights, x: torch.Tensor, slots: torch.Tensor, counts: torch.Tensor | None = None
) -> torch.Tensor:
    counts = counts_of(weights) if counts is None else counts
    return ReferenceOps(DEVICE, x.dtype).mixture(weights, x, slots, reference.silu_mul, counts)


def on_gpu(
    weights: ExpertWeights, x: torch.Tensor, slots: torch.Tensor, counts: torch.Tensor | None = None
) -> torch.Tensor:
    stacked = replace(weights, experts=StackedExperts(weights.experts, x.dtype))
    return mixture.mixture(stacked, x, slots, activation.silu_mul, counts_of(weights) if counts is None else counts)


def worst(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((actual - expected).double().norm(dim=1) / expected.double().norm(dim=1).clamp_min(1e-9)).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "count", "per_token", "hidden", "inner"),
    [(1, 4, 2, 64, 40), (5, 8, 8, 48, 96), (33, 3, 1, 128, 72), (150, 2, 2, 96, 128)],
)
def test_mixture(tokens: int, count: int, per_token: int, hidden: int, inner: int, dtype: torch.dtype) -> None:
    """Up to more tokens of an expert than a tile has; padding has no expert, and what it holds is not read."""
    weights = experts_of(count, per_token, hidden, inner, dtype)
    x, slots = random(tokens, hidden, dtype=dtype, seed=1), torch.arange(tokens, device=DEVICE)
    slots[3::7] = -1
    expected_counts, counts = counts_of(weights), counts_of(weights)
    expected = reference_of(weights, x, slots, expected_counts)
    x[3::7] = torch.nan
    actual = on_gpu(weights, x, slots, counts)
    assert torch.equal(counts, expected_counts)
    assert not actual[3::7].any()
    assert worst(actual, expected) < {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]


@pytest.mark.parametrize(
    ("format", "biased"), [*((format, True) for format in FORMATS), ("int4", False), ("e4m3", False)]
)
def test_formats(format: str, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = experts_of(4, 2, 128, 128, torch.float16, format, biased=biased)
    x, slots = random(9, 128, dtype=torch.float16, seed=1), torch.arange(9, device=DEVICE)
    slots[2] = -1
    actual = on_gpu(weights, x, slots)
    monkeypatch.setattr(
        RoundedLinear, "__call__", lambda self, x: rounded_linear(x, self.weight, self.bias, x.dtype), raising=True
    )
    assert worst(actual, reference_of(weights, x, slots)) < 1e-2


def test_a_rule_with_a_bias_of_the_choice() -> None:
    rule = RoutingRule("sigmoid", 2.5, groups=2, groups_per_token=1, group_best=2)
    bias = random(8, dtype=torch.float32, seed=3)
    weights = replace(experts_of(8, 3, 64, 32, torch.float32), rule=rule, choice_bias=bias)
    x, slots = random(7, 64, dtype=torch.float32, seed=1), torch.arange(7, device=DEVICE)
    actual = on_gpu(weights, x, slots)
    assert worst(actual, reference_of(weights, x, slots)) < 1e-5
    assert worst(actual, reference_of(replace(weights, choice_bias=None), x, slots)) > 0.1


def test_a_router_with_an_input_of_its_own() -> None:
    weights = replace(experts_of(8, 3, 64, 32, torch.float32), share_scale=random(8, dtype=torch.float32, seed=3) + 2)
    x, routed = (random(7, 64, dtype=torch.float32, seed=seed) for seed in (1, 2))
    slots = torch.arange(7, device=DEVICE)
    stacked = replace(weights, experts=StackedExperts(weights.experts, x.dtype))
    actual = mixture.mixture(stacked, x, slots, activation.silu_mul, counts_of(weights), routed)
    ops = ReferenceOps(DEVICE, x.dtype)
    expected = ops.mixture(weights, x, slots, reference.silu_mul, counts_of(weights), routed)
    assert worst(actual, expected) < 1e-5
    assert worst(actual, reference_of(weights, x, slots)) > 0.1


@pytest.mark.parametrize("format", FORMATS)
def test_stacked_experts_are_the_experts(format: str) -> None:
    weights = experts_of(3, 2, 128, 128, torch.float16, format, biased=format != "int8")
    stacked = StackedExperts(weights.experts, torch.float16)
    x = random(2, 128, dtype=torch.float16)
    assert len(stacked) == 3
    for expert, own in zip(stacked, weights.experts, strict=True):
        assert torch.equal(expert.gate_up(x), own.gate_up(x))
        assert torch.equal(expert.down(x), own.down(x))


def test_experts_of_different_formats_are_expanded() -> None:
    one, other = experts_of(2, 2, 128, 128, torch.float16, "int4"), experts_of(2, 2, 128, 128, torch.float16)
    mixed = replace(one, experts=[one.experts[0], other.experts[1]])
    x, slots = random(3, 128, dtype=torch.float16), torch.arange(3, device=DEVICE)
    assert isinstance(StackedExperts(mixed.experts, torch.float16).gate_up.weight, torch.Tensor)
    assert worst(on_gpu(mixed, x, slots), reference_of(mixed, x, slots)) < 1e-2


def test_a_token_alone_equals_the_token_among_others() -> None:
    """To the bit, though its experts compute for others in larger tiles; a token that is not finite stays alone."""
    weights = experts_of(2, 2, 96, 64, torch.float16)
    x, slots = random(70, 96, dtype=torch.float16), torch.arange(70, device=DEVICE)
    x[5] = torch.nan
    assert (expert_launch(140, 2), expert_launch(2, 2)) == (MANY_TOKENS, FEW_TOKENS)
    among = on_gpu(weights, x, slots)
    assert among.isnan().all(dim=1).nonzero().flatten().tolist() == [5]
    for token in (0, 69):
        assert torch.equal(on_gpu(weights, x[token : token + 1].clone(), slots[:1])[0], among[token])
