"""A mixture of experts on the native library: only chosen experts are read, each for all of its tokens at once."""

import numpy as np

from kernels.arrays import FLOAT32, Array, Flags, Floats, Ints
from kernels.cpu.native import abi
from kernels.cpu.native.linear import NativeLinear
from kernels.weights import PLAIN_ROUTING, TINY_SHARE, ExpertWeights, MlpWeights, RoutingRule


def mlp(weights: MlpWeights[NativeLinear], x: Array, store: abi.Store) -> Floats:
    """A gated MLP: float32 [T, H] from bf16 [T, H]."""
    inner = weights.gate_up.gated(x, store)
    return weights.down.wide(inner[:, : weights.down.in_features])


def mixture(weights: ExpertWeights[NativeLinear], x: Array, store: abi.Store, expert_tokens: Ints) -> Floats:
    """The weighted sum of each token's experts, and the shared MLP: float32 [T, H] from bf16 [T, H]."""
    total = chosen_experts(weights, x, x, store, expert_tokens)
    if weights.shared is not None:
        shared = mlp(weights.shared, x, store)
        total += shared if weights.shared_gate is None else _sigmoid(weights.shared_gate.wide(x)) * shared
    return total


def chosen_experts(
    weights: ExpertWeights[NativeLinear], x: Array, routed: Array, store: abi.Store, expert_tokens: Ints
) -> Floats:
    """The weighted sum of each token's experts: float32 [T, H] from bf16 [T, H]. `routed`: the router's input.

    A token's result depends on that token alone, to the bit: products do, and its experts are added in the order of
    their numbers. `expert_tokens`, int64 [experts], counts the tokens that each has computed.
    """
    chosen, shares = route(
        weights.router.wide(routed), weights.per_token, weights.renormalise, weights.rule, weights.choice_bias
    )
    if weights.share_scale is not None:
        shares = shares * weights.share_scale[chosen]
    counts = np.bincount(chosen.ravel(), minlength=len(weights.experts))
    expert_tokens += counts
    total = np.zeros((len(x), weights.experts[0].down.out_features), FLOAT32)
    for expert in np.flatnonzero(counts).tolist():
        tokens, ranks = np.nonzero(chosen == expert)
        output = mlp(weights.experts[expert], x[tokens], store)
        total[tokens] += output * shares[tokens, ranks, None]
    return total


def route(
    logits: Floats,
    per_token: int,
    renormalise: bool,
    rule: RoutingRule = PLAIN_ROUTING,
    choice_bias: Floats | None = None,
) -> tuple[Ints, Floats]:
    """`kernels.reference.route` on numpy arrays. Of equal scores the lower expert is chosen."""
    softmax = rule.scoring == "softmax"
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True)) if softmax else _sigmoid(logits)
    # The order of logits is that of their probabilities, without ties by rounding.
    ranked = logits if softmax else powers
    if choice_bias is not None:
        ranked = (powers / powers.sum(axis=-1, keepdims=True) if softmax else powers) + choice_bias
    if rule.groups > 1:
        ranked = np.where(_open_groups(ranked, rule), ranked, -np.inf)
    chosen: Ints = np.argsort(-ranked, axis=-1, kind="stable")[:, :per_token]
    shares = np.take_along_axis(powers, chosen, axis=-1)
    if renormalise:
        shares = shares / (shares.sum(axis=-1, keepdims=True) + np.float32(0 if softmax else TINY_SHARE))
    elif softmax:
        shares = shares / powers.sum(axis=-1, keepdims=True)
    return chosen, shares if rule.scale == 1 else shares * np.float32(rule.scale)


def _open_groups(ranked: Floats, rule: RoutingRule) -> Flags:
    """bool [T, experts]: whether an expert's group is among those that a token chooses from."""
    by_group = ranked.reshape(len(ranked), rule.groups, -1)
    scores = np.sort(by_group, axis=-1)[:, :, -rule.group_best :].sum(axis=-1)
    order = np.argsort(-scores, axis=-1, kind="stable")[:, : rule.groups_per_token]
    is_open = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(is_open, order, True, axis=-1)
    return np.repeat(is_open, by_group.shape[2], axis=-1)


def _sigmoid(x: Floats) -> Floats:
    # tanh has no overflow: e^-x of a very negative x has one.
    sigmoid: Floats = np.float32(0.5) * (np.float32(1) + np.tanh(np.float32(0.5) * x))
    return sigmoid
