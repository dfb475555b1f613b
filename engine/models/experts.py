"""The config of a mixture of experts."""

import math
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

    def flaw(self, max_width: int, max_factor: float) -> str | None:
        """Why a model with these values, bounded by `max_width` and `max_factor`, cannot be served; None if it can."""
        if not 1 <= self.count <= MAX_EXPERTS:
            return f"experts: {self.count} is not in 1..{MAX_EXPERTS}"
        if not 1 <= self.per_token <= self.count:
            return f"experts per token: {self.per_token} of {self.count} experts"
        if not (1 <= self.size <= max_width and 0 <= self.shared_size <= max_width):
            return f"experts: a width of {self.size} or {self.shared_size}"
        if self.own_norms and (not self.shared_size or self.shared_gate):
            return "experts: norms of their own need a shared MLP without a gate"
        for scale in (self.router_scale, self.rule.scale):
            if not (math.isfinite(scale) and 0 < scale <= max_factor):
                return f"experts: a scale of {scale}, not a positive number up to {max_factor:g}"
        return self._flaw_of_groups()

    def _flaw_of_groups(self) -> str | None:
        rule = self.rule
        of_group, rest = divmod(self.count, rule.groups)
        if rest or not 1 <= rule.groups_per_token <= rule.groups or rule.group_best > of_group:
            return f"expert groups: {rule.groups_per_token} of {rule.groups} groups of {self.count} experts"
        if rule.groups_per_token * of_group < self.per_token:
            return f"experts per token: {self.per_token} of {rule.groups_per_token} groups"
        return None
