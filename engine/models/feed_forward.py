"""The feed-forward part of a layer in torch: an MLP, or a mixture of experts."""

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from kernels import weights as weight_types
from kernels.exchange import tensor_of
from kernels.ops import ExpertWeights, MlpWeights, Ops
from kernels.reference import clamped_swiglu_mul, route


class FeedForward:
    """Computes the MLPs of a model. `expert_tokens`: tokens that each expert has computed, over all layers, int64
    [experts]."""

    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        multiply = {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_mul, "clamped_swiglu": clamped_swiglu_mul}
        self._multiply = multiply[config.activation]
        experts = config.experts
        self.expert_tokens = torch.zeros(0 if experts is None else experts.count, dtype=torch.int64)

    def __call__(self, weights: MlpWeights | ExpertWeights, x: Tensor) -> Tensor:
        """[T, H] from normed inputs [T, H]."""
        if isinstance(weights, weight_types.ExpertWeights):
            return self._experts(weights, x)
        return self._mlp(weights, x)

    def _mlp(self, weights: MlpWeights, x: Tensor) -> Tensor:
        return weights.down(self._multiply(weights.gate_up(x)))

    def _experts(self, weights: ExpertWeights, x: Tensor) -> Tensor:
        """Only chosen experts are computed, each for its tokens at once, in the order of their numbers."""
        bias = None if weights.choice_bias is None else tensor_of(weights.choice_bias)
        logits = weights.router.wide(x)
        chosen, shares = route(logits, weights.per_token, weights.renormalise, weights.rule, bias)
        counts = chosen.flatten().bincount(minlength=len(weights.experts))
        self.expert_tokens += counts
        total = torch.zeros_like(x)
        for expert in counts.nonzero().flatten().tolist():
            tokens, ranks = (chosen == expert).nonzero(as_tuple=True)
            output = self._mlp(weights.experts[expert], x[tokens])
            total.index_add_(0, tokens, output * shares[tokens, ranks, None].to(x.dtype))
        if weights.shared is not None:
            shared = self._mlp(weights.shared, x)
            total += shared if weights.shared_gate is None else weights.shared_gate(x).sigmoid() * shared
        return total
