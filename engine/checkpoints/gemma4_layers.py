"""The layers of Gemma 4 as files of every format mean them: what no key states."""

import math
from collections.abc import Sequence
from typing import Any

from engine.models.experts import ExpertsConfig


def common_fields(hidden_size: int) -> dict[str, Any]:
    """Fields of the `ModelConfig` that all its forms have."""
    return {
        "qk_norm": True,
        "value_norm": True,
        "branch_norm": True,
        "layer_scalars": True,
        "attention_scale": 1.0,
        "embedding_scale": math.sqrt(hidden_size),
    }


def kv_sources(slides: Sequence[bool], shared: int) -> tuple[int, ...] | None:
    """The layer whose KV each attends to: the last `shared` layers to that of the last one of their kind before them.
    None if a kind has no layer with KV of its own."""
    own = range(max(0, len(slides) - shared))
    last = {slides[layer]: layer for layer in own}
    if set(slides) - last.keys():
        return None
    return (*own, *(last[slide] for slide in slides[len(own) :]))


def experts_config(count: int, per_token: int, size: int, dense_size: int, hidden_size: int) -> ExpertsConfig:
    """Experts of width `size`, and the MLP of width `dense_size` that every token passes through."""
    return ExpertsConfig(
        count=count,
        per_token=per_token,
        size=size,
        renormalise=True,
        shared_size=dense_size,
        shared_gate=False,
        own_norms=True,
        router_scale=hidden_size**-0.5,
        share_scale=True,
    )
