"""The outputs of the forward pass, and memory that all CUDA graphs leave them in."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.execution.device.draws import Draws
from kernels.ops import CheckedRows, FiniteTokens


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The outputs of the model for a step.

    hidden: [T, H]. finite: which of the hidden states are. logits: float32 [D, V].
    """

    draws: Draws
    hidden: Tensor
    finite: FiniteTokens
    logits: Tensor


class SharedOutputs:
    """Outputs of the largest graph; every graph leaves its own in the first rows.

    A graph's results stay alive as long as it does. With memory of its own for each of 35 sizes, the logits of a
    vocabulary of 128,256 alone would take 2.2 GB; here they take those of the largest, 131 MB.
    """

    def __init__(self, hidden: CheckedRows) -> None:
        """`hidden`: memory of the hidden states of the largest graph."""
        self._hidden = hidden
        self._logits: Tensor | None = None

    def hidden(self, tokens: int) -> CheckedRows:
        """Where a graph of `tokens` tokens leaves its hidden states."""
        return self._hidden.first(tokens)

    def keep(self, forwarded: Forwarded) -> Forwarded:
        """Copy the logits of a step to the first rows, and return the outputs with these. The first step is the
        largest."""
        logits = forwarded.logits
        if self._logits is None:
            self._logits = torch.empty_like(logits)
        return replace(forwarded, logits=self._logits[: len(logits)].copy_(logits))
