"""The feed-forward part of a layer in torch: an MLP, or a mixture of experts."""

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from kernels import weights as weight_types
from kernels.ops import AttentionPlan, ExpertWeights, MlpWeights, Ops
from kernels.reference import clamped_swiglu_mul


class FeedForward:
    """Computes the MLPs of a model. `expert_tokens`: tokens that each expert has computed, over all layers, int64
    [experts]."""

    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        self._ops = ops
        multiply = {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_mul, "clamped_swiglu": clamped_swiglu_mul}
        self._multiply = multiply[config.activation]
        experts = config.experts
        self.expert_tokens = torch.zeros(0 if experts is None else experts.count, dtype=torch.int64)

    def __call__(self, weights: MlpWeights | ExpertWeights, x: Tensor, plan: AttentionPlan) -> Tensor:
        """[T, H] from normed inputs [T, H]. `plan`: says which tokens are padding, which experts do not compute."""
        if isinstance(weights, weight_types.ExpertWeights):
            return self._experts(weights, x, plan)
        return self._mlp(weights, x)

    def _mlp(self, weights: MlpWeights, x: Tensor) -> Tensor:
        return weights.down(self._multiply(weights.gate_up(x)))

    def _experts(self, weights: ExpertWeights, x: Tensor, plan: AttentionPlan) -> Tensor:
        total = self._ops.mixture(weights, x, plan.slot_mapping, self._multiply, self.expert_tokens)
        if weights.shared is not None:
            shared = self._mlp(weights.shared, x)
            total += shared if weights.shared_gate is None else weights.shared_gate(x).sigmoid() * shared
        return total
