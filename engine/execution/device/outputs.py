"""The outputs of the forward pass, and memory that all CUDA graphs leave them in."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.execution.device.draws import Draws
from engine.models.transformer import Transformer
from kernels.ops import CheckedRows, FiniteTokens


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The outputs of the model for a step.

    hidden: [T, H]. finite: which of the hidden states are. logits: [D, V], see `Transformer.logits`.
    """

    draws: Draws
    hidden: Tensor
    finite: FiniteTokens
    logits: Tensor


class SharedOutputs:
    """Outputs of the largest graph; every graph leaves its own in the first rows.

    A graph's results stay alive as long as it does. With memory of its own for each of 35 sizes, the logits of a
    vocabulary of 128,256 alone would take 1.1 GB in bf16; here they take those of the largest, 66 MB.
    """

    def __init__(self, hidden: CheckedRows, logits: Tensor) -> None:
        """Memory of the largest graph: `hidden` for its hidden states, `logits` [D, V] for its logits."""
        self._hidden, self._logits = hidden, logits

    @classmethod
    def allocate(cls, model: Transformer, tokens: int) -> Self:
        """Memory for graphs of up to `tokens` tokens, each with at most a draw."""
        shape = (tokens, model.config.vocab_size)
        return cls(hidden_states(model, tokens), torch.empty(shape, dtype=model.logits_dtype, device=model.ops.device))

    def hidden(self, tokens: int) -> CheckedRows:
        """Where a graph of `tokens` tokens leaves its hidden states."""
        return self._hidden.first(tokens)

    def logits(self, draws: int) -> Tensor:
        """Where a graph of `draws` draws leaves its logits."""
        return self._logits[:draws]


def hidden_states(model: Transformer, tokens: int) -> CheckedRows:
    """Memory for a model's hidden states of `tokens` tokens."""
    return CheckedRows.empty(tokens, model.config.hidden_size, model.ops.dtype, model.ops.device)
