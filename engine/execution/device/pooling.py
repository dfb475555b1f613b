"""The vector arithmetic of embeddings on the device."""

import torch
from torch import Tensor

from engine.execution.pooling import MIN_NORM


class DeviceSums:
    """`engine.execution.pooling.Sums` of tensors."""

    def total(self, hidden: Tensor, rows: slice, before: Tensor | None) -> Tensor:
        total = hidden[rows].sum(dim=0, dtype=torch.float64)
        return total if before is None else before + total

    def normalise(self, total: Tensor) -> Tensor:
        return torch.nn.functional.normalize(total, dim=0, eps=MIN_NORM).float()
