"""The config of a mixture of experts."""

from dataclasses import dataclass

from kernels.weights import PLAIN_ROUTING, RoutingRule

MAX_EXPERTS = 1024
"""Bound of an expert count in a checkpoint's config, above any real model."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts (Shazeer et al., arXiv 1701.06538; Mixtral, arXiv 2401.04088).

    A token's output is the weighted sum of the `per_token` experts of `count` with the best scores, each an MLP of
    width `size`. The weights are the scores by `rule`, divided by their sum if `renormalise`. `choice_bias`: a weight
    of the model is added to scores for the choice (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). `bias`: router and
    experts have biases. `shared_size`: width of an MLP that every token passes through, 0: none; `shared_gate`:
    weighted by a sigmoid gate of its own.

    `own_norms`: router and experts read the residual stream, each through a norm of its own, and the outputs of the
    experts and of the shared MLP are normed before they are added: see `kernels.weights.ExpertNorms`. `router_scale`:
    factor of the router's normed input. `share_scale`: a weight of the model multiplies the shares of each expert.
    """

    count: int
    per_token: int
    size: int
    renormalise: bool = False
    shared_size: int = 0
    rule: RoutingRule = PLAIN_ROUTING
    choice_bias: bool = False
    bias: bool = False
    shared_gate: bool = True
    own_norms: bool = False
    router_scale: float = 1.0
    share_scale: bool = False
