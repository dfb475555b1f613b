"""Steps to attend to latents in."""

from dataclasses import dataclass, replace

import torch

from tests.kernels.triton.attention_cases import Heads, Step, make_step

SCALE = 0.11
"""Of scores: not the one that the dimensions of a key suggest."""


@dataclass(frozen=True)
class Latents:
    """Query heads, rotated dimensions and those of the latent."""

    heads: int = 4
    rotated: int = 16
    rank: int = 32


def step_of(lens: list[int], contexts: list[int], shape: Latents, dtype: torch.dtype, seed: int = 0) -> Step:
    step = make_step(lens, contexts, Heads(1, shape.heads, shape.rotated + shape.rank), dtype=dtype, seed=seed)
    return replace(step, kv_layer=step.kv_layer[:, :, :1].contiguous())
