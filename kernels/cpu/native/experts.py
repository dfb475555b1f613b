"""A mixture of experts on the native library: only chosen experts are read, each for all of its tokens at once."""

import numpy as np

from kernels.arrays import FLOAT32, Array, Floats, Ints
from kernels.cpu.native import abi
from kernels.cpu.native.linear import NativeLinear
from kernels.weights import ExpertWeights, MlpWeights


def mlp(weights: MlpWeights[NativeLinear], x: Array, store: abi.Store) -> Floats:
    """A gated MLP: float32 [T, H] from bf16 [T, H]."""
    inner = weights.gate_up.gated(x, store)
    return weights.down.wide(inner[:, : weights.down.in_features])


def mixture(weights: ExpertWeights[NativeLinear], x: Array, store: abi.Store, expert_tokens: Ints) -> Floats:
    """The weighted sum of each token's experts: float32 [T, H] from bf16 [T, H].

    A token's result depends on that token alone, to the bit: products do, and its experts are added in the order of
    their numbers. `expert_tokens`, int64 [experts], counts the tokens that each has computed.
    """
    chosen, shares = route(weights.router.wide(x), weights.per_token, weights.renormalise)
    counts = np.bincount(chosen.ravel(), minlength=len(weights.experts))
    expert_tokens += counts
    total = np.zeros((len(x), weights.experts[0].down.out_features), FLOAT32)
    for expert in np.flatnonzero(counts).tolist():
        tokens, ranks = np.nonzero(chosen == expert)
        output = mlp(weights.experts[expert], x[tokens], store)
        total[tokens] += output * shares[tokens, ranks, None]
    if weights.shared is not None and weights.shared_gate is not None:
        total += _sigmoid(weights.shared_gate.wide(x)) * mlp(weights.shared, x, store)
    return total


def route(logits: Floats, per_token: int, renormalise: bool) -> tuple[Ints, Floats]:
    """`kernels.reference.route` on numpy arrays. Of equal logits the lower expert is chosen."""
    chosen: Ints = np.argsort(-logits, axis=-1, kind="stable")[:, :per_token]
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares = np.take_along_axis(powers, chosen, axis=-1)
    whole = shares if renormalise else powers
    return chosen, shares / whole.sum(axis=-1, keepdims=True)


def _sigmoid(x: Floats) -> Floats:
    # tanh has no overflow: e^-x of a very negative x has one.
    sigmoid: Floats = np.float32(0.5) * (np.float32(1) + np.tanh(np.float32(0.5) * x))
    return sigmoid
