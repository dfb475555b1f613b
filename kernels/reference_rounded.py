"""The definition of products in 8 bits, in plain torch: weights and activations are rounded to e4m3 or int8.

A number is its code times a scale. Weights have a scale for each output, or for each 128 inputs of an output;
activations one for each token, for each 128 inputs of a token (DeepSeek-V3, arXiv 2412.19437), or one that a checkpoint
states.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.reference_grouped import PackedGroups

GROUP_INPUTS = 128
"""Inputs that share a scale, where an output or token has several."""

LARGEST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}


@dataclass(frozen=True, slots=True)
class RoundedWeight:
    """A weight [N, K], K a multiple of 128.

    codes: float8_e4m3fn or int8 [N, K]. scales: float32 [1, N], or [K / 128, N].
    """

    codes: Tensor
    scales: Tensor

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        return self.codes.shape[1]

    @property
    def grouped(self) -> bool:
        """Whether scales are of 128 inputs."""
        return self.scales.shape[0] > 1

    def floats(self) -> Tensor:
        """The weight float32 [N, K]."""
        return _scaled(self.codes, self.scales.T)


def round_tokens(x: Tensor, dtype: torch.dtype, *, grouped: bool) -> tuple[Tensor, Tensor]:
    """x [T, K] as codes of `dtype` [T, K] and scales float32 [T, 1], or [T, K / 128] if `grouped`.

    A scale is the largest magnitude over the largest number of the dtype, and 1 for zeros. Codes are the nearest
    numbers, ties to even. If a number is not finite, the scale is NaN, and the codes are arbitrary.
    """
    size = GROUP_INPUTS if grouped else x.shape[1]
    groups = x.float().view(len(x), x.shape[1] // size, size)
    largest = groups.abs().amax(-1)
    scales = torch.where(largest > 0, largest / LARGEST[dtype], 1.0)
    scales = scales.masked_fill(~groups.isfinite().all(-1), torch.nan)
    numbers = torch.nan_to_num(groups / scales[..., None]).clamp(-LARGEST[dtype], LARGEST[dtype])
    rounded = numbers.round() if dtype == torch.int8 else numbers
    return rounded.flatten(1).to(dtype), scales


def round_by(x: Tensor, scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`round_tokens` with one scale that is given: what is larger than the largest number becomes that."""
    finite = x.isfinite().all(-1, keepdim=True)
    scales = torch.full_like(x[:, :1], scale, dtype=torch.float32).masked_fill(~finite, torch.nan)
    numbers = torch.nan_to_num(x.float() / scales).clamp(-LARGEST[dtype], LARGEST[dtype])
    return (numbers.round() if dtype == torch.int8 else numbers).to(dtype), scales


def rounded_linear(
    x: Tensor, weight: RoundedWeight, bias: Tensor | None, dtype: torch.dtype, input_scale: float | None = None
) -> Tensor:
    """Rounded x [T, K] times the weight transposed, plus bias [N]: summed in float32, rounded once to `dtype`.

    `input_scale`: what x is rounded by; None: each token has scales of its own."""
    if input_scale is None:
        codes, scales = round_tokens(x, weight.codes.dtype, grouped=weight.grouped)
    else:
        codes, scales = round_by(x, input_scale, weight.codes.dtype)
    product = _scaled(codes, scales) @ weight.floats().T
    return (product if bias is None else product + bias.float()).to(dtype)


def round_weight(weight: Tensor, dtype: torch.dtype) -> RoundedWeight:
    """A weight [N, K] rounded with one scale for each output."""
    codes, scales = round_tokens(weight, dtype, grouped=False)
    return RoundedWeight(codes, scales.T.contiguous())


def weight_of_blocks(blocks: Tensor) -> RoundedWeight:
    """From rows of blocks uint8 [N, K / 128 x 132]: a float32 scale, then the e4m3 codes of 128 inputs. Scales that are
    the same for all inputs of each output become one."""
    by_block = blocks.view(len(blocks), -1, 4 + GROUP_INPUTS)
    scales = by_block[..., :4].clone(memory_format=torch.contiguous_format).view(torch.float32)[..., 0].T
    codes = by_block[..., 4:].flatten(1).contiguous().view(torch.float8_e4m3fn)
    one = bool((scales == scales[:1]).all())
    return RoundedWeight(codes, (scales[:1] if one else scales).contiguous())


def weight_of_integers(weight: PackedGroups) -> RoundedWeight | None:
    """Integers of 8 bits as int8; None if an output has several scales, or a zero point other than 128."""
    if weight.zero_points is None:
        return None
    scales, inputs = weight.scales[: -(-weight.in_features // weight.group)], weight.in_features
    symmetric = bool((weight.zero_points[: len(scales)] == 128).all()) and bool((scales == scales[:1]).all())
    if weight.bits != 8 or not symmetric or inputs % GROUP_INPUTS:
        return None
    return RoundedWeight((weight.integers() - 128).to(torch.int8), scales[:1].contiguous())


def joined_rounded(parts: Sequence[RoundedWeight]) -> RoundedWeight:
    """Weights with codes of one dtype, concatenated along their outputs."""
    if len(parts) == 1:
        return parts[0]
    lines = max(part.scales.shape[0] for part in parts)
    codes = torch.cat([part.codes.view(torch.uint8) for part in parts]).view(parts[0].codes.dtype)
    scales = [part.scales.expand(lines, part.out_features) for part in parts]
    return RoundedWeight(codes, torch.cat(scales, dim=1).contiguous())


def _scaled(codes: Tensor, scales: Tensor) -> Tensor:
    """Codes [n, K] times scales [n, groups], float32."""
    by_group = codes.float().view(len(codes), scales.shape[1], -1)
    return (by_group * scales[..., None]).flatten(1)
