"""What this processor is good at, found out in a fraction of a second at start."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.linear import PackedLinear, PlainLinear, can_pack

_OUT, _IN = 4096, 2048
_WEIGHTS = 3
"""Distinct weights in turn (16 MiB each in bf16), so that the cache does not stand in for memory."""
_ROUNDS = 2
_MIN_ROWS = (1, 2, 4)
_WORTHWHILE = 0.93
"""A choice that departs from the plainer one has to take at most this share of its time."""


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """How to compute on this machine. `probe_us` are times of one [rows, 2048] x [2048, 4096] product."""

    dtype: torch.dtype
    threads: int
    packed: bool
    min_rows: int
    probe_us: dict[str, float]


def probe(dtype: torch.dtype | None = None, threads: int | None = None) -> CpuProfile:
    """Choose dtype, packing, padding and threads; arguments that are given are kept.

    Sets torch's thread count. bf16 is chosen where it is the faster at eight rows: at one row memory decides, of which
    bf16 reads half, so it takes more rows to tell a processor that computes in bf16 from one that converts.
    """
    threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    probe_us: dict[str, float] = {}
    if dtype is None:
        dtype = _faster_dtype(probe_us)
    packed, min_rows = False, 1
    if can_pack(dtype):
        weights = [torch.full((_OUT, _IN), 0.01, dtype=dtype) for _ in range(_WEIGHTS)]
        plain = _time([PlainLinear(weight, None) for weight in weights], dtype, 1)
        ready = [PackedLinear(weight, None) for weight in weights]
        by_rows = {rows: _time(ready, dtype, rows) for rows in _MIN_ROWS}
        for rows in _MIN_ROWS:
            if by_rows[rows] < by_rows[min_rows] * _WORTHWHILE:
                min_rows = rows
        packed = by_rows[min_rows] <= plain
        probe_us |= {"plain x1": plain} | {f"packed x{rows}": us for rows, us in by_rows.items()}
    return CpuProfile(dtype, threads, packed, min_rows, {name: round(us, 1) for name, us in probe_us.items()})


def _faster_dtype(probe_us: dict[str, float]) -> torch.dtype:
    if not can_pack(torch.bfloat16):
        return torch.float32
    for dtype in (torch.bfloat16, torch.float32):
        product = PackedLinear(torch.full((_OUT, _IN), 0.01, dtype=dtype), None)
        probe_us[f"{str(dtype).removeprefix('torch.')} x8"] = _time([product], dtype, 8)
    return torch.bfloat16 if probe_us["bfloat16 x8"] <= probe_us["float32 x8"] else torch.float32


def _time(products: Sequence[Callable[[Tensor], Tensor]], dtype: torch.dtype, rows: int) -> float:
    """Microseconds of one product in the fastest round over all of them."""
    x = torch.full((rows, _IN), 0.01, dtype=dtype)
    best = float("inf")
    for _ in range(1 + _ROUNDS):  # the first round pays for first times
        started = time.perf_counter()
        for product in products:
            product(x)
        best = min(best, time.perf_counter() - started)
    return best / len(products) * 1e6
