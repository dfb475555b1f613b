"""A mixture of experts on a GPU: route, sort and count, two products with the chosen experts, and the weighted sum.
Nothing waits for the device, and every launch depends on the number of tokens alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import cast, overload

import torch
import triton
from torch import Tensor

from kernels.ops import ExpertWeights, Linear, MlpWeights
from kernels.reference_experts import ExpertTiles
from kernels.reference_grouped import PackedGroups, stacked_groups
from kernels.reference_ops import ReferenceLinear
from kernels.reference_rounded import RoundedWeight
from kernels.triton.capability import capability_of
from kernels.triton.experts import (
    EXPERT_INPUTS,
    expert_grouped_kernel,
    expert_linear_kernel,
    expert_rounded_kernel,
    weighted_sum_kernel,
)
from kernels.triton.grouped import GroupedLinear
from kernels.triton.rounded import RoundedLinear
from kernels.triton.rounding import round_tokens
from kernels.triton.routing import align, route
from kernels.triton.tiles import MOVED_TILE, warps_for
from kernels.triton.tuning_products import EXPERTS, ProductTile, expert_launch, kind_of_codes, tile_on
from kernels.weights import MlpWeights as Mlp

Weight = Tensor | PackedGroups | RoundedWeight


class StackedLinear:
    """The weights and biases of one product of all experts, [experts, ...] in each of their tensors."""

    def __init__(self, linears: Sequence[Linear], dtype: torch.dtype) -> None:
        first = linears[0]
        self.experts = len(linears)
        self.out_features, self.in_features = first.out_features, first.in_features
        weights: list[Weight] = [_own(linear).weight for linear in linears]
        self.weight: Weight
        if all(isinstance(weight, PackedGroups) for weight in weights):
            self.weight = stacked_groups(cast("list[PackedGroups]", weights))
        elif all(isinstance(weight, RoundedWeight) for weight in weights):
            self.weight = _stacked_rounded(cast("list[RoundedWeight]", weights))
        else:
            dense = [weight if isinstance(weight, Tensor) else weight.floats().to(dtype) for weight in weights]
            self.weight = torch.stack(dense)
        biases = [linear.bias for linear in map(_own, linears) if linear.bias is not None]
        assert len(biases) in (0, self.experts), "all experts have a bias, or none"
        self.bias = torch.stack(biases) if biases else None

    def __call__(self, x: Tensor, tiles: ExpertTiles, per_line: int, assignments: int) -> Tensor:
        """Line a // per_line of x for each assignment a: [assignments, N]. Lines without an expert are 0."""
        output = x.new_zeros((assignments, self.out_features))
        launch = self._launch(tiles.tile)
        grid = (triton.cdiv(self.out_features, launch.output_tile), len(tiles.experts))
        shape = (self.bias, output, tiles.experts, tiles.assignments, self.in_features, self.out_features)
        weight = self.weight
        if isinstance(weight, PackedGroups):
            tensors = (x, weight.codes, weight.scales, weight.zero_points)
            expert_grouped_kernel[grid](
                *tensors, *shape, PER_LINE=per_line, GROUP=weight.group, BITS=weight.bits, **launch.options
            )
        elif isinstance(weight, RoundedWeight):
            grouped = weight.scales.shape[1] > 1
            codes, scales = round_tokens(x, weight.codes.dtype, grouped=grouped)
            expert_rounded_kernel[grid](
                codes, scales, weight.codes, weight.scales, *shape, PER_LINE=per_line, GROUPED=grouped, **launch.options
            )
        else:
            expert_linear_kernel[grid](x, weight, *shape, PER_LINE=per_line, INPUT_TILE=EXPERT_INPUTS, **launch.options)
        return output

    def linear(self, expert: int) -> Linear:
        """The product of one expert, over the same memory."""
        weight, bias = self.weight, None if self.bias is None else self.bias[expert]
        if isinstance(weight, PackedGroups):
            zero_points = None if weight.zero_points is None else weight.zero_points[expert]
            own = replace(weight, codes=weight.codes[expert], scales=weight.scales[expert], zero_points=zero_points)
            return GroupedLinear(own, bias)
        if isinstance(weight, RoundedWeight):
            return RoundedLinear(RoundedWeight(weight.codes[expert], weight.scales[expert]), bias)
        return ReferenceLinear(weight[expert], bias)

    def _launch(self, tile: int) -> ProductTile:
        weight = self.weight
        if isinstance(weight, PackedGroups):
            return tile_on(capability_of(weight.codes.device), "grouped", EXPERTS["grouped", tile])
        if isinstance(weight, RoundedWeight):
            kind = kind_of_codes(weight.codes.dtype)
            return tile_on(capability_of(weight.codes.device), kind, EXPERTS["rounded", tile])
        return tile_on(capability_of(weight.device), "plain", EXPERTS["plain", tile])


class StackedExperts(Sequence[Mlp[Linear]]):
    """The experts of a layer, whose products are computed together. As a sequence: each by itself."""

    def __init__(self, experts: Sequence[MlpWeights], dtype: torch.dtype) -> None:
        self.gate_up = StackedLinear([expert.gate_up for expert in experts], dtype)
        self.down = StackedLinear([expert.down for expert in experts], dtype)

    def __len__(self) -> int:
        return self.gate_up.experts

    @overload
    def __getitem__(self, index: int) -> Mlp[Linear]: ...

    @overload
    def __getitem__(self, index: slice) -> list[Mlp[Linear]]: ...

    def __getitem__(self, index: int | slice) -> Mlp[Linear] | list[Mlp[Linear]]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return Mlp(self.gate_up.linear(index), self.down.linear(index))

    def __iter__(self) -> Iterator[Mlp[Linear]]:
        return (self[index] for index in range(len(self)))


def mixture(
    weights: ExpertWeights,
    x: Tensor,
    slot_mapping: Tensor,
    multiply: Callable[[Tensor], Tensor],
    expert_tokens: Tensor,
    routed: Tensor | None = None,
) -> Tensor:
    """`kernels.reference_experts.mixture` of the experts that `kernels.reference.route` chooses. `routed`: the router's
    input, where it is not x."""
    experts = weights.experts
    assert isinstance(experts, StackedExperts), "the experts of another backend"
    tokens, per_token = x.shape[0], weights.per_token
    output = torch.empty_like(x)
    if not tokens:
        return output
    logits = weights.router.wide(x if routed is None else routed)
    chosen, shares = route(
        logits, per_token, weights.renormalise, slot_mapping, weights.rule, weights.choice_bias, weights.share_scale
    )
    assignments = chosen.numel()
    tiles = align(chosen, len(experts), expert_launch(assignments, len(experts)), expert_tokens)
    inner = multiply(experts.gate_up(x, tiles, per_token, assignments))
    outputs = experts.down(inner, tiles, 1, assignments)
    width = x.shape[1]
    weighted_sum_kernel[tokens, triton.cdiv(width, MOVED_TILE)](
        outputs,
        chosen,
        shares,
        output,
        WIDTH=width,
        PER_TOKEN=per_token,
        TILE=MOVED_TILE,
        num_warps=warps_for(MOVED_TILE),
    )
    return output


def _own(linear: Linear) -> ReferenceLinear | GroupedLinear | RoundedLinear:
    assert isinstance(linear, ReferenceLinear | GroupedLinear | RoundedLinear), "a product of another backend"
    return linear


def _stacked_rounded(weights: Sequence[RoundedWeight]) -> RoundedWeight:
    dtype, lines = weights[0].codes.dtype, max(weight.scales.shape[0] for weight in weights)
    codes = torch.stack([weight.codes.view(torch.uint8) for weight in weights]).view(dtype)
    return RoundedWeight(codes, torch.stack([weight.scales.expand(lines, -1) for weight in weights]))
