"""Requests as chats bring them: log-normal prompts and answers, from a seed."""

import random
from dataclasses import dataclass

from gateway.tools.bench.lengths import LogNormal

_SIGMA = 0.8


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt and how long its answer is to be."""

    prompt: list[int]
    output_tokens: int


def make_jobs(count: int, vocab_size: int, seed: int = 0, *, scale: float = 1.0) -> list[Job]:
    """Prompts of mean 128 tokens (16-512), answers of mean 64 (8-256), most short, a few long; means times `scale`."""
    rng = random.Random(seed)
    return [
        Job(
            [rng.randrange(16, vocab_size) for _ in range(LogNormal(scale * 128, _SIGMA, 16, 512).draw(rng))],
            LogNormal(scale * 64, _SIGMA, 8, 256).draw(rng),
        )
        for _ in range(count)
    ]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
