"""The feed-forward part of a layer in torch: an MLP, or a mixture of experts."""

import torch
from torch import Tensor

from engine.models.adapted_products import LayerAdapters, multiply
from engine.models.collective import Collective
from engine.models.config import ModelConfig
from kernels import weights as weight_types
from kernels.ops import AttentionPlan, ExpertNorms, ExpertWeights, LayerWeights, MlpWeights, Ops


class FeedForward:
    """Computes the MLPs of a model. `expert_tokens`: tokens that each expert has computed, over all layers, int64
    [experts] on the device."""

    def __init__(self, config: ModelConfig, ops: Ops, collective: Collective) -> None:
        self._ops, self._eps, self._collective = ops, config.rms_norm_eps, collective
        multiply = {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_mul, "clamped_swiglu": ops.clamped_swiglu_mul}
        self.multiply = multiply[config.activation]
        experts = config.experts
        count = 0 if experts is None else experts.count
        self.expert_tokens = torch.zeros(count, dtype=torch.int64, device=ops.device)

    def __call__(
        self,
        layer: LayerWeights,
        x: Tensor,
        residual: Tensor,
        plan: AttentionPlan,
        adapted: LayerAdapters | None = None,
    ) -> Tensor:
        """[T, H] from normed inputs x, and the residual stream before that norm, [T, H]. `plan`: says which tokens are
        padding, which experts do not compute. `adapted`: the adapters of a dense MLP."""
        if not isinstance(layer.mlp, weight_types.ExpertWeights):
            return self._collective.sum(self._mlp(layer.mlp, x, adapted))
        if layer.expert_norms is not None:
            return self._normed_experts(layer.mlp, layer.expert_norms, x, residual, plan)
        return self._collective.sum(self._experts(layer.mlp, x, plan))

    def _mlp(self, weights: MlpWeights, x: Tensor, adapted: LayerAdapters | None = None) -> Tensor:
        """A rank's term of the sum."""
        inner = self.multiply(multiply(weights.gate_up, x, "gate_up", adapted))
        return multiply(weights.down, inner, "down", adapted)

    def _experts(self, weights: ExpertWeights, x: Tensor, plan: AttentionPlan) -> Tensor:
        total = self._ops.mixture(weights, x, plan.slot_mapping, self.multiply, self.expert_tokens)
        if weights.shared is not None:
            shared = self._mlp(weights.shared, x)
            total += shared if weights.shared_gate is None else weights.shared_gate(x).sigmoid() * shared
        return total

    def _normed_experts(
        self, weights: ExpertWeights, norms: ExpertNorms, x: Tensor, residual: Tensor, plan: AttentionPlan
    ) -> Tensor:
        ops, eps, total = self._ops, self._eps, self._collective.sum
        assert weights.shared is not None, "these norms belong to a mixture with a shared MLP"
        own, routed = (ops.rms_norm(residual, norm, eps) for norm in (norms.experts, norms.router))
        experts = total(ops.mixture(weights, own, plan.slot_mapping, self.multiply, self.expert_tokens, routed))
        shared = ops.rms_norm(total(self._mlp(weights.shared, x)), norms.shared_output, eps)
        return ops.add_branch(experts, norms.experts_output, shared, None, eps)[0]
