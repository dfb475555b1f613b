"""The arithmetic of embeddings on the device."""

import torch
from torch import Tensor

from engine.execution.pooling import LEAST_LENGTH


class DeviceSums:
    """`engine.execution.pooling.Sums` of tensors."""

    def total(self, hidden: Tensor, rows: slice, before: Tensor | None) -> Tensor:
        total = hidden[rows].sum(dim=0, dtype=torch.float64)
        return total if before is None else before + total

    def of_length_1(self, total: Tensor) -> Tensor:
        return torch.nn.functional.normalize(total, dim=0, eps=LEAST_LENGTH).float()
