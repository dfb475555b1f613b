"""The outputs of the forward pass, and memory that all CUDA graphs leave them in."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.execution.device.draws import Draws


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The outputs of the model for a step.

    hidden: [T, H]. finite: bool [D], whether the hidden states of each draw's row are. logits: float32 [D, V].
    """

    draws: Draws
    hidden: Tensor
    finite: Tensor
    logits: Tensor


class SharedOutputs:
    """Outputs of the largest graph; every graph leaves its own in the first rows.

    A graph's results stay alive as long as it does. With memory of its own for each of 35 sizes, the logits of a
    vocabulary of 128,256 alone would take 2.2 GB; here they take those of the largest, 131 MB.
    """

    def __init__(self, largest: Forwarded) -> None:
        self._hidden, self._finite, self._logits = (
            torch.empty_like(each) for each in (largest.hidden, largest.finite, largest.logits)
        )

    def keep(self, forwarded: Forwarded) -> Forwarded:
        """Copy the outputs of a step of one draw a row to the first rows, and return these."""
        hidden, finite, logits = (
            kept[: len(each)].copy_(each)
            for kept, each in (
                (self._hidden, forwarded.hidden),
                (self._finite, forwarded.finite),
                (self._logits, forwarded.logits),
            )
        )
        return Forwarded(forwarded.draws, hidden, finite, logits)
