"""Requests for embeddings, and what comes of them."""

from collections.abc import Mapping

import numpy as np
import torch

from engine.request import FinishReason, Pooling, SamplingParams, TokenDelta
from tests.engine.execution.harness import Generated
from tests.support.tiny_tokenizer import VOCAB_SIZE

LENGTHS = (1, 5, 16, 17, 40, 70)


def prompt(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


def embedding(pooling: Pooling) -> SamplingParams:
    return SamplingParams(max_tokens=0, pooling=pooling)


def vector(delta: TokenDelta) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(delta.embedding, "<f4").copy())


def of(results: Mapping[str, Generated], name: str) -> TokenDelta:
    """The one delta of a request."""
    (delta,) = results[name].deltas
    assert delta.finish_reason is FinishReason.STOP
    assert delta.token_ids == ()
    return delta
