"""Every kernel against its meaning in plain torch, on the device that it is for."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 2e-5}
"""Of the worst row's error over the row's length: some roundings of each dtype. tf32 would not pass in float32."""


def worst_row_error(actual: Tensor, expected: Tensor) -> float:
    """max over rows of ||actual - expected|| / ||expected||; NaN where there is one. A row of zeros has to be that."""
    if actual.numel() == 0:
        return 0.0
    a, e = actual.double().flatten(1), expected.double().flatten(1)
    smallest = torch.finfo(torch.float64).tiny
    return float(((a - e).norm(dim=1) / e.norm(dim=1).clamp_min(smallest)).max())


def share_that_differs(actual: Tensor, expected: Tensor) -> float:
    """Of two tensors that are to be equal, and have no NaN."""
    return float((actual != expected).double().mean())


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Memory that is allocated in here and not written is NaN, or the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
