"""The kinds of weights that products are checked and measured with."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernels.microscaling import BLOCK_INPUTS
from kernels.ops import ExpertWeights, Linear, MlpWeights
from kernels.reference_grouped import grouped_linear, pack_groups, round_to_groups
from kernels.reference_ops import ReferenceLinear
from kernels.reference_rounded import RoundedWeight, round_tokens, round_weight, rounded_linear
from kernels.triton.grouped import GroupedLinear
from kernels.triton.mixture import StackedExperts
from kernels.triton.rounded import RoundedLinear
from kernels.weights import ExpertWeights as Experts
from kernels.weights import MlpWeights as Mlp
from kernels.weights import RoutingRule


@dataclass(frozen=True, slots=True)
class ProductKind:
    """linear: packs a weight [N, K]. rounds: inputs are rounded, too. bits: of a weight."""

    name: str
    linear: Callable[[Tensor], Linear]
    rounds: bool
    bits: int

    def meaning(self, x: Tensor, linear: Linear) -> Tensor:
        """The product by its definition, float32."""
        if isinstance(linear, GroupedLinear):
            return grouped_linear(x, linear.weight, None, torch.float32)
        assert isinstance(linear, RoundedLinear), f"{self.name} is neither in groups nor rounded"
        return rounded_linear(x, linear.weight, None, torch.float32)


def _integers(bits: int) -> ProductKind:
    return ProductKind(
        f"integers of {bits} bits", lambda weight: GroupedLinear(round_to_groups(weight, bits, 128), None), False, bits
    )


def _microscaled(weight: Tensor) -> Linear:
    """Random numbers in the weight's place."""
    out_features, in_features = weight.shape
    codes = torch.randint(0, 16, weight.shape, dtype=torch.uint8, device=weight.device)
    exponents = torch.randint(
        119, 123, (out_features, in_features // BLOCK_INPUTS), dtype=torch.uint8, device=weight.device
    )
    return GroupedLinear(pack_groups(4, BLOCK_INPUTS, codes, exponents, None), None)


def _in_groups(weight: Tensor) -> Linear:
    codes, scales = round_tokens(weight, torch.float8_e4m3fn, grouped=True)
    return RoundedLinear(RoundedWeight(codes, scales.T.contiguous()), None)


def _rounded(dtype: torch.dtype) -> Callable[[Tensor], Linear]:
    return lambda weight: RoundedLinear(round_weight(weight, dtype), None)


KINDS = (
    _integers(4),
    _integers(8),
    ProductKind("MXFP4", _microscaled, False, 4),
    ProductKind("e4m3", _rounded(torch.float8_e4m3fn), True, 8),
    ProductKind("e4m3 in groups", _in_groups, True, 8),
    ProductKind("int8", _rounded(torch.int8), True, 8),
)


def mixture_of(
    generator: torch.Generator,
    device: torch.device,
    kind: ProductKind,
    experts: int,
    per_token: int,
    hidden: int,
    inner: int,
    dtype: torch.dtype,
    *,
    biased: bool,
) -> tuple[ExpertWeights, ExpertWeights]:
    """A mixture with its experts apart, and with them stacked. `biased`: router and experts have biases, and scores are
    sigmoids, with a bias of the choice."""

    def random(*shape: int) -> Tensor:
        return (torch.randn(shape, generator=generator, device=device) / shape[-1] ** 0.5).to(dtype)

    def expert() -> MlpWeights:
        return Mlp(kind.linear(random(2 * inner, hidden)), kind.linear(random(hidden, inner)))

    router = ReferenceLinear(random(experts, hidden), random(experts) if biased else None)
    plain = Experts(router, [expert() for _ in range(experts)], per_token, renormalise=True)
    stacked = StackedExperts(plain.experts, dtype)
    if not biased:
        return plain, replace(plain, experts=stacked)
    stacked.gate_up.bias, stacked.down.bias = random(experts, 2 * inner), random(experts, hidden)
    plain = replace(plain, experts=[*stacked], rule=RoutingRule("sigmoid", 2.5), choice_bias=random(experts).float())
    return plain, replace(plain, experts=stacked)
