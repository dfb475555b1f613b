"""Products of few rows, those with quantised weights, and mixtures of experts, against their meaning in plain torch."""

from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.checks import TOLERANCE, poisoned_memory, share_that_differs, worst_row_error
from benchmarks.gpu.product_kinds import KINDS, ProductKind, mixture_of
from benchmarks.gpu.stage import Stage
from kernels import reference
from kernels.reference_ops import ReferenceOps
from kernels.triton import activation
from kernels.triton.few_rows import PlainLinear
from kernels.triton.mixture import mixture
from kernels.triton.routing import route
from kernels.weights import PLAIN_ROUTING, RoutingRule

_ROUTED = (96, 6)
"""Experts, and those of a token."""
_RULES = {
    "a router whose shares are scaled": PLAIN_ROUTING,
    "a sigmoid router": RoutingRule("sigmoid", 2.5),
    "a sigmoid router with groups": RoutingRule("sigmoid", 2.5, groups=8, groups_per_token=4, group_best=2),
    "a softmax router with groups": RoutingRule("softmax", 16.0, groups=8, groups_per_token=3),
}

_TIMES_ALONE = 20

_ROUNDED_TOLERANCE = 5e-2
"""Of products whose inputs are rounded: a quotient between two codes may go to either."""


def run(stage: Stage) -> None:
    scale, dtype = stage.scale, stage.scale.dtypes[0]
    for of_product in scale.dtypes:
        for rows in scale.few_rows:
            title = f"product with plain numbers, {rows} rows, {of_product}"
            stage.attempt(title, partial(_check_few_rows, stage, title, rows, of_product))
    for kind in KINDS:
        if kind.rounds and not scale.fp8_stores:
            continue
        for rows in scale.checked_rows:
            title = f"product with {kind.name}, {rows} rows"
            stage.attempt(title, partial(_check_product, stage, title, kind, rows, dtype))
        for biased in (False, True):
            title = f"experts in {kind.name}{', with biases' * biased}"
            stage.attempt(title, partial(_check_experts, stage, title, kind, dtype, biased=biased))
    for title, rule in _RULES.items():
        stage.attempt(title, partial(_check_routing, stage, title, rule))


def _random(stage: Stage, *shape: int) -> Tensor:
    return torch.randn(shape, generator=stage.generator, device=stage.device)


def _check_few_rows(stage: Stage, title: str, rows: int, dtype: torch.dtype) -> None:
    """Splits are added by the program that is done last, each time another one; among others rows are what they are
    alone."""
    out_features, in_features = stage.scale.checked_product
    weight, bias = _random(stage, out_features, in_features).to(dtype), _random(stage, out_features).to(dtype)
    x = _random(stage, rows, in_features).to(dtype)
    linear = PlainLinear(weight, bias)
    with poisoned_memory():
        actual = linear.by_kernel(x, torch.float32)
    expected = reference.linear(x.double(), weight.double(), bias.double())
    stage.checked(title, worst_row_error(actual, expected), TOLERANCE[dtype])
    with poisoned_memory():
        alone = [linear.by_kernel(x[-1:].clone(), torch.float32)[0] for _ in range(_TIMES_ALONE)]
    worst = max(share_that_differs(each, actual[-1]) for each in alone)
    stage.checked(f"{title}: the last alone, {_TIMES_ALONE} times", worst, 0.0, "must be the same")


def _check_product(stage: Stage, title: str, kind: ProductKind, rows: int, dtype: torch.dtype) -> None:
    out_features, in_features = stage.scale.checked_product
    weight = _random(stage, out_features, in_features).to(dtype)
    x = _random(stage, rows, in_features).to(dtype)
    linear = kind.linear(weight)
    with poisoned_memory():
        actual = linear(x)
    tolerance = _ROUNDED_TOLERANCE if kind.rounds else TOLERANCE[dtype]
    stage.checked(title, worst_row_error(actual, kind.meaning(x, linear)), tolerance)
    with poisoned_memory():
        alone = linear(x[-1:].clone())
    stage.checked(f"{title}: the last alone", share_that_differs(alone[0], actual[-1]), 0.0, "must be the same")


def _check_experts(stage: Stage, title: str, kind: ProductKind, dtype: torch.dtype, *, biased: bool) -> None:
    tokens, experts, per_token, hidden, inner = stage.scale.checked_mixture
    plain, stacked = mixture_of(
        stage.generator, stage.device, kind, experts, per_token, hidden, inner, dtype, biased=biased
    )
    x, slots = _random(stage, tokens, hidden).to(dtype), torch.arange(tokens, device=stage.device)
    slots[tokens // 2] = -1
    counts, expected_counts = torch.zeros(2, experts, dtype=torch.int64, device=stage.device)
    with poisoned_memory():
        actual = mixture(stacked, x, slots, activation.silu_mul, counts)
    expected = ReferenceOps(stage.device, dtype).mixture(plain, x, slots, reference.silu_mul, expected_counts)
    tolerance = _ROUNDED_TOLERANCE if kind.rounds else 2 * TOLERANCE[dtype]
    stage.checked(title, worst_row_error(actual, expected), tolerance)
    assert int(counts.sum()) == (tokens - 1) * per_token, "every token but padding is counted once"


def _check_routing(stage: Stage, title: str, rule: RoutingRule) -> None:
    """Shares are those of the chosen experts; of two scores that nearly tie, either may be chosen. By the plain rule
    they are scaled, as in Gemma 4; by the others the choice has a bias."""
    tokens, (experts, per_token) = stage.scale.checked_mixture[0], _ROUTED
    logits, of_experts = 3 * _random(stage, tokens, experts), _random(stage, experts)
    bias, scale = (None, of_experts) if rule == PLAIN_ROUTING else (of_experts, None)
    slots = torch.zeros(tokens, dtype=torch.int64, device=stage.device)
    with poisoned_memory():
        chosen, shares = route(logits, per_token, True, slots, rule, bias, scale)
    expected, expected_shares = reference.route(logits, per_token, True, rule, bias, scale)
    same = (chosen == expected).all(dim=1)
    stage.checked(title, 1 - float(same.double().mean()), 0.01, "of the tokens have other experts")
    stage.checked(f"{title}, shares", worst_row_error(shares[same], expected_shares[same]), TOLERANCE[torch.float32])
