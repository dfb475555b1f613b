"""A start-up probe of torch's performance on this processor; takes a fraction of a second."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels.cpu.cores import usable_cores
from kernels.cpu.linear import PackedLinear, PlainLinear, can_pack

_OUT, _IN = 4096, 2048
_WEIGHTS = 3
"""Distinct weights used in turn (16 MiB each in bf16), so that products read memory rather than the cache."""
_ROUNDS = 2
_MIN_ROWS = (1, 2, 4)
_WORTHWHILE = 0.93
"""Maximum ratio of times at which a non-default choice is made."""


Products = Literal["onednn", "plain"]
"""The implementation of products: oneDNN's packed layout, or plain rows."""


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """How to compute on this machine. `min_rows`: padding of oneDNN's products. `probe_us`: times of one [rows, 2048] x
    [2048, 4096] product."""

    dtype: torch.dtype
    threads: int
    products: Products
    min_rows: int
    probe_us: dict[str, float]


def probe(dtype: torch.dtype | None = None, threads: int | None = None) -> CpuProfile:
    """Choose dtype, implementation of products, padding and threads; given arguments are fixed.

    bf16 is chosen if it is faster at eight rows: at one row memory bandwidth dominates, of which bf16 needs half, so it
    takes more rows to distinguish a processor that computes in bf16 from one that converts.
    """
    threads = threads or usable_cores()
    torch.set_num_threads(threads)
    probe_us: dict[str, float] = {}
    if dtype is None:
        dtype = _faster_dtype(probe_us)
    weights = [torch.full((_OUT, _IN), 0.01, dtype=dtype) for _ in range(_WEIGHTS)]
    products, min_rows = _chosen(weights, probe_us)
    return CpuProfile(dtype, threads, products, min_rows, {name: round(us, 1) for name, us in probe_us.items()})


def _chosen(weights: Sequence[Tensor], probe_us: dict[str, float]) -> tuple[Products, int]:
    """The implementation of products and oneDNN's padding."""
    plain = probe_us["plain x1"] = _time([PlainLinear(weight, None) for weight in weights], 1)
    if not can_pack(weights[0].dtype):
        return "plain", 1
    ready = [PackedLinear(weight, None) for weight in weights]
    by_rows = {rows: _time(ready, rows) for rows in _MIN_ROWS}
    probe_us |= {f"onednn x{rows}": us for rows, us in by_rows.items()}
    min_rows = 1
    for rows in _MIN_ROWS:
        if by_rows[rows] < by_rows[min_rows] * _WORTHWHILE:
            min_rows = rows
    return ("onednn", min_rows) if by_rows[min_rows] <= plain else ("plain", 1)


def _faster_dtype(probe_us: dict[str, float]) -> torch.dtype:
    if not can_pack(torch.bfloat16):
        return torch.float32
    for dtype in (torch.bfloat16, torch.float32):
        product = PackedLinear(torch.full((_OUT, _IN), 0.01, dtype=dtype), None)
        probe_us[f"{str(dtype).removeprefix('torch.')} x8"] = _time([product], 8)
    return torch.bfloat16 if probe_us["bfloat16 x8"] <= probe_us["float32 x8"] else torch.float32


def _time(products: Sequence[PackedLinear | PlainLinear], rows: int) -> float:
    """Microseconds of one product, in the fastest round over all of them."""
    x = torch.full((rows, _IN), 0.01, dtype=products[0].dtype)
    best = float("inf")
    for _ in range(1 + _ROUNDS):  # the first round pays for first times
        started = time.perf_counter()
        for product in products:
            product(x)
        best = min(best, time.perf_counter() - started)
    return best / len(products) * 1e6
