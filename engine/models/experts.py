"""The config of a mixture of experts."""

from dataclasses import dataclass

MAX_EXPERTS = 1024
"""Bound of an expert count in a checkpoint's config, above any real model."""


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A mixture of experts with a softmax router (Shazeer et al., arXiv 1701.06538; Mixtral, arXiv 2401.04088).

    A token's output is the weighted sum of its `per_token` most probable experts of `count`, each an MLP of width
    `size`. The weights are the router's probabilities, divided by their sum if `renormalise`. `shared_size`: width of
    an MLP that every token passes through, weighted by a sigmoid gate of its own; 0: none.
    """

    count: int
    per_token: int
    size: int
    renormalise: bool = False
    shared_size: int = 0
