"""The only place that chooses between backends."""

import torch

from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import probe
from kernels.ops import Ops


def select_ops(dtype: torch.dtype | None = None, threads: int | None = None) -> Ops:
    """The op table for this machine. `dtype` None leaves the choice to the start-up probe."""
    return CpuOps(probe(dtype, threads))
