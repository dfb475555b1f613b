"""Routing to experts and the order of their tokens equal the reference."""

import pytest
import torch

from kernels import reference_experts as reference
from kernels.reference import route
from kernels.triton import routing
from kernels.weights import RoutingRule
from tests.support.kernel_tensors import DEVICE, random


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("tokens", "experts", "per_token"), [(1, 4, 2), (7, 128, 8), (3, 60, 4), (2, 5, 5), (4, 3, 1)])
def test_route(tokens: int, experts: int, per_token: int, renormalise: bool) -> None:
    logits = random(tokens, experts, dtype=torch.float32) * 3
    slots = torch.arange(tokens, device=DEVICE)
    slots[tokens // 2 :: 3] = -1
    chosen, weights = routing.route(logits, per_token, renormalise, slots)
    expected, expected_weights = route(logits, per_token, renormalise)
    assert torch.equal(chosen.long(), reference.without_padding(expected, slots))
    torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-7)


RULES = {
    "glm-4.5": RoutingRule("sigmoid", 2.5),
    "minimax-m2": RoutingRule("sigmoid"),
    "deepseek-v2": RoutingRule("softmax", 16.0, groups=4, groups_per_token=2),
    "deepseek-v3": RoutingRule("sigmoid", 2.5, groups=4, groups_per_token=3, group_best=2),
    "scaled": RoutingRule("softmax", 0.5),
}


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("experts", [16, 12, 100])
def test_rules(name: str, experts: int, biased: bool, renormalise: bool) -> None:
    """Groups of 4, of 3, and of 25 experts: those that fill up a tile are not chosen, though biases are below 0."""
    rule, tokens, per_token = RULES[name], 9, 5
    logits = random(tokens, experts, dtype=torch.float32) * 3
    bias = random(experts, dtype=torch.float32, seed=1) - 2 if biased else None
    slots = torch.arange(tokens, device=DEVICE)
    slots[2::4] = -1
    chosen, weights = routing.route(logits, per_token, renormalise, slots, rule, bias)
    expected, expected_weights = route(logits, per_token, renormalise, rule, bias)
    assert torch.equal(chosen.long(), reference.without_padding(expected, slots))
    torch.testing.assert_close(weights, expected_weights, rtol=1e-5, atol=1e-7)


def test_shares_scaled_by_their_expert() -> None:
    logits, scale = random(7, 12, dtype=torch.float32) * 3, random(12, dtype=torch.float32, seed=1) + 2
    slots = torch.arange(7, device=DEVICE)
    _, weights = routing.route(logits, 3, True, slots, share_scale=scale)
    _, expected = route(logits, 3, True, share_scale=scale)
    torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(weights.sum(dim=1), torch.ones(7, device=DEVICE))


@pytest.mark.parametrize("name", RULES)
def test_broken_logits_of_every_rule(name: str) -> None:
    """NaN stays in its token, whose experts exist; infinite logits of sigmoids are scores of 0 and 1."""
    logits = random(3, 12, dtype=torch.float32)
    logits[1, 4] = torch.nan
    rule, slots = RULES[name], torch.zeros(3, dtype=torch.int64, device=DEVICE)
    if rule.scoring == "sigmoid":
        logits[2, 5:8] = torch.tensor([torch.inf, -torch.inf, 90.0])
    chosen, weights = routing.route(logits, 3, False, slots, rule, torch.zeros(12, device=DEVICE))
    assert 0 <= int(chosen.min()) <= int(chosen.max()) < 12
    assert weights.isnan().all(dim=1).tolist() == [False, True, False]


def test_tokens_are_counted_by_expert_once() -> None:
    """Padding has no expert and is not counted."""
    chosen = torch.tensor([[0, 3], [3, 1], [-1, -1], [3, 0]], dtype=torch.int32, device=DEVICE)
    counted = torch.tensor([5, 0, 2**33, 7], device=DEVICE)
    for _ in range(2):
        routing.align(chosen, 4, 16, counted)
    assert counted.tolist() == [9, 2, 2**33, 13]


def test_equal_logits_and_broken_ones() -> None:
    """The lower expert first; a NaN stays in its token, whose experts exist."""
    logits = torch.zeros(3, 6, device=DEVICE)
    logits[1, 4] = torch.nan
    chosen, weights = routing.route(logits, 2, True, torch.zeros(3, dtype=torch.int64, device=DEVICE))
    assert chosen[[0, 2]].tolist() == [[0, 1], [0, 1]]
    assert 0 <= int(chosen.min()) <= int(chosen.max()) < 6
    assert weights.isnan().all(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize("tile", [16, 32])
@pytest.mark.parametrize(
    ("tokens", "experts", "per_token"), [(1, 8, 2), (40, 4, 2), (300, 8, 4), (5, 128, 8), (1100, 3, 1)]
)
def test_align(tokens: int, experts: int, per_token: int, tile: int) -> None:
    generator = torch.Generator().manual_seed(tokens)
    skew = torch.rand(tokens, experts, generator=generator) ** 3
    chosen = skew.topk(per_token, dim=-1).indices.int()
    chosen[tokens // 3 : tokens // 2] = -1
    expected = reference.align(chosen.to(DEVICE), experts, tile)
    actual = routing.align(chosen.to(DEVICE), experts, tile)
    assert torch.equal(actual.experts, expected.experts)
    assert torch.equal(actual.assignments, expected.assignments)


@pytest.mark.parametrize("expert", [0, 6, -1])
def test_all_tokens_of_one_expert_fit(expert: int) -> None:
    chosen = torch.full((33, 1), expert, dtype=torch.int32, device=DEVICE)
    tiles = routing.align(chosen, 7, 16)
    assert tiles.experts.tolist() == ([expert] * 3 if expert >= 0 else []) + [-1] * (6 if expert >= 0 else 9)
    assert tiles.assignments[:33].tolist() == (list(range(33)) if expert >= 0 else [-1] * 33)
